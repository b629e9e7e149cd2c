// A CUDA or HIP driver whose only GPU has a name: ranks that load it share that GPU.
int cuCtxGetDevice(int* device) {
  *device = 0;
  return 0;
}

int cuDeviceGetUuid(void* uuid, int device) {
  for (int i = 0; i < 16; ++i) ((char*)uuid)[i] = (char)(i + 1 + device);
  return 0;
}

int hipGetDevice(int* device) { return cuCtxGetDevice(device); }

int hipDeviceGetUuid(void* uuid, int device) { return cuDeviceGetUuid(uuid, device); }

// hipDeviceAttributeWallClockRate is 100 MHz.
int hipDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  *value = 100000;
  return attribute != 10017;
}
