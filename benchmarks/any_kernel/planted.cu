// A kernel that knows nothing of kprof, in three bodies: arithmetic, loads, and barriers with shared memory.
#include <cuda_runtime.h>

// Which block and which SM do `factor` times the work, and how much more (in base units) the last block does than the
// first.
struct Plant {
  int late_block, late_sm, factor, slope;
};

template <int Body>
__global__ void planted(float* data, int size, int base, Plant plant) {
  extern __shared__ float shared[];
  const int block = blockIdx.x + gridDim.x * blockIdx.y, num_blocks = gridDim.x * gridDim.y;
  int sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  const bool is_late = block == plant.late_block || sm == plant.late_sm;
  const long long more = (long long)base * plant.slope * block / (num_blocks > 1 ? num_blocks - 1 : 1);
  const int steps = (is_late ? base * plant.factor : base) + (int)more;
  float value = threadIdx.x;
  unsigned place = (block * 977u + threadIdx.x) % size;
  for (int step = 0; step < steps; ++step) {
    if (Body == 0) {
      for (int k = 0; k < 64; ++k) value = value * 0.9999f + 0.5f;
    } else if (Body == 1) {
      value += data[place];
      place = (place + 4099u) % size;
    } else {
      shared[threadIdx.x] = value;
      __syncthreads();
      value = value * 0.5f + shared[(threadIdx.x + 33) % blockDim.x];
      __syncthreads();
    }
  }
  if (value == -1.0f) data[place] = value;
}

template <int Body>
static int start(dim3 grid, int threads, int shared, float* data, int size, int base, Plant plant,
                 cudaStream_t stream) {
  // Barriers exchange a word per thread.
  if (Body == 2 && shared < threads * 4) shared = threads * 4;
  cudaFuncSetAttribute(planted<Body>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  planted<Body><<<grid, threads, shared, stream>>>(data, size, base, plant);
  return cudaGetLastError();
}

extern "C" int launch_planted(int body, int grid_x, int grid_y, int threads, int shared, float* data, int size,
                              int base, int late_block, int late_sm, int factor, int slope, void* stream) {
  const Plant plant{late_block, late_sm, factor, slope};
  const auto start_body = body == 0 ? start<0> : body == 1 ? start<1> : start<2>;
  return start_body(dim3(grid_x, grid_y), threads, shared, data, size, base, plant, (cudaStream_t)stream);
}
