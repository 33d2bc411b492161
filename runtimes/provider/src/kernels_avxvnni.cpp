#define T2R_OWN_QUANTIZED_PRODUCT
#include "kernels.inl"

#include "rows_avx2.inl"

namespace t2r::provider {

T2R_KERNELS_OF(avxvnni);

}  // namespace t2r::provider
