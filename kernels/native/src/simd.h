// The primitives of the machine that this is compiled for. All back ends share their names, so
// that the algorithms are written once; they differ in the number of lanes.
#pragma once
#if defined(LANEWISE_PORTABLE)
#include "simd_portable.h"
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

#if defined(__AMX_INT8__) && defined(__linux__) && !defined(LANEWISE_PORTABLE)
#define LW_TILES
#include "tiles_amx.h"
#endif
