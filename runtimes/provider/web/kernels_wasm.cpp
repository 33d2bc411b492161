#define T2R_OWN_QUANTIZE
#define T2R_OWN_QUANTIZED_PRODUCT
#include "../src/kernels.inl"

#include "rows_wasm.inl"

namespace t2r::provider {

T2R_KERNELS_OF(wasm);

}  // namespace t2r::provider
