#include "kernels.inl"

namespace t2r::provider {

extern const Kernels base_kernels{"base", unary, binary, sum, max, maxima, above, product, rotate, scaled, update, row_products, row_scores, add_rows, quantize, quantized_product};

}  // namespace t2r::provider
