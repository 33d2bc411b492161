/* Stands for ONNX Runtime where libt2r.so is linked, and is never loaded: its one function that libt2r calls by name, without
   the version that each of its releases gives that name. */
const void *OrtGetApiBase(void) { return 0; }
