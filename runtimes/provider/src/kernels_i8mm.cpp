#define T2R_OWN_QUANTIZED_PRODUCT
#include "kernels.inl"

#include "rows_neon.inl"

namespace t2r::provider {

T2R_KERNELS_OF(i8mm);

}  // namespace t2r::provider
