// Plain loops for the compiler to vectorize, included by one source file per instruction set. Nothing here may call an
// inline function of the standard library: the linker keeps one copy of each, possibly compiled for an instruction set
// that this machine lacks.
#include <cstring>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "kernels.hpp"
#include "vectors.inl"

#include "products.inl"
#include "windows.inl"

// Defines the table of a set, of the functions above and of what the set has of its own.
#define T2R_KERNELS_OF(set)                                                                                                             \
    extern const Kernels set##_kernels{#set, unary, binary, sum, max, maxima, above, product, rotate, scaled, update, row_products,     \
                                       row_scores, add_rows, quantize, quantized_product}
