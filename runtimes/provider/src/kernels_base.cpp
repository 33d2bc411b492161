#include "kernels.inl"

namespace t2r::provider {

T2R_KERNELS_OF(base);

}  // namespace t2r::provider
