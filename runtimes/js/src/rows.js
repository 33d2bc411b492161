/** Gathers rows of tensors into a new tensor: on the GPU if all are there, else in CPU memory. */

import { SIZES, product } from "./signature.js";

/**
 * @param {any} ort the module of ONNX Runtime
 * @param {[any, number][]} rows tensors of one type and of one shape after their first dimension, and a row of each
 * @returns {Promise<any>} a tensor of these rows
 */
export async function gathered(ort, rows) {
  const [[{ type, dims: [, ...dims] }]] = rows, shape = [rows.length, ...dims];
  const size = product(dims) * SIZES[type];
  // WebGPU copies need offsets and sizes of multiples of 4 bytes
  if (size > 0 && size % 4 === 0 && rows.every(([tensor]) => tensor.location === "gpu-buffer")) return onGpu(ort, rows, type, shape, size);
  const data = new Map(); // tensor → its bytes
  for (const [tensor] of rows) if (!data.has(tensor)) data.set(tensor, await bytesOf(tensor));
  const made = new Uint8Array(size * rows.length);
  rows.forEach(([tensor, row], n) => made.set(data.get(tensor).subarray(row * size, (row + 1) * size), n * size));
  return new ort.Tensor(type, new ARRAYS[type](made.buffer), shape);
}

export const ARRAYS = { float32: Float32Array, float16: Uint16Array, int8: Int8Array, int32: Int32Array, int64: BigInt64Array };

/** The bytes of a tensor: a view of it, or a copy from the GPU. @returns {Promise<Uint8Array>} */
export async function bytesOf(tensor) {
  const data = tensor.location === "gpu-buffer" ? await tensor.getData() : tensor.data;
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

/** Copies in ONNX Runtime's own queue, which orders them after earlier runs and before later ones. */
async function onGpu(ort, rows, type, dims, size) {
  const device = await ort.env.webgpu.device, { STORAGE, COPY_SRC, COPY_DST, MAP_READ } = globalThis["GPUBufferUsage"];
  const bytes = rows.length * size;
  const buffer = device.createBuffer({ size: Math.ceil(bytes / 16) * 16, usage: STORAGE | COPY_SRC | COPY_DST }); // as in ONNX Runtime
  const copied = (copy) => {
    const encoder = device.createCommandEncoder();
    copy(encoder);
    device.queue.submit([encoder.finish()]);
  };
  copied((encoder) => rows.forEach(([{ gpuBuffer }, row], n) => encoder.copyBufferToBuffer(gpuBuffer, row * size, buffer, n * size, size)));
  const download = async () => {
    const staging = device.createBuffer({ size: bytes, usage: COPY_DST | MAP_READ });
    copied((encoder) => encoder.copyBufferToBuffer(buffer, 0, staging, 0, bytes));
    await staging.mapAsync(globalThis["GPUMapMode"].READ);
    const found = new ARRAYS[type](staging.getMappedRange().slice(0));
    staging.destroy();
    return found;
  };
  return ort.Tensor.fromGpuBuffer(buffer, { dataType: type, dims, download, dispose: () => buffer.destroy() });
}
