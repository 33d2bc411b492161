#define T2R_OWN_QUANTIZED_PRODUCT
#include "kernels.inl"

#include "rows_neon.inl"

namespace t2r::provider {

extern const Kernels neon_kernels{"neon", unary, binary, sum, max, maxima, above, product, rotate, scaled, update, row_products, row_scores, add_rows, quantize, quantized_product};

}  // namespace t2r::provider
