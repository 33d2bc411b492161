/* libt2r.so is linked with this instead of ONNX Runtime; it is never loaded. It has the one function that libt2r calls by
   name, without the symbol version of a release. */
const void *OrtGetApiBase(void) { return 0; }
