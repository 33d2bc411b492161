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
