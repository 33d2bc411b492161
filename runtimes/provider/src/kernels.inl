// Included by one source for each kind of processor: plain loops, made for a compiler to vectorize. Nothing here may call
// an inline function of the standard library: the linker keeps one copy of each, which might be the one for a processor
// that this machine is not.
#include <cstring>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "kernels.hpp"
#include "vectors.inl"

#include "products.inl"
