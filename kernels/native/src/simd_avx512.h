// Primitives for AVX-512 with VNNI: 16 lanes of 32 bits.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace simd {

constexpr int kLanes = 16;
constexpr const char* kName = "avx512-vnni";

using Floats = __m512;
using Ints = __m512i;
using Bytes = __m512i;
using Words = __m512i;
using Sum4 = __m512i;  // sums of 32 bits: VNNI adds four products at once

inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats set1(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats abs(Floats a) { return _mm512_abs_ps(a); }
inline Floats round(Floats a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline Floats load_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store_half(uint16_t* p, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline Floats select_positive(Floats x, Floats value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, zero(), _CMP_GT_OQ), value);
}

inline float reduce_add(Floats x) { return _mm512_reduce_add_ps(x); }
inline float reduce_max(Floats x) { return _mm512_reduce_max_ps(x); }

// Lane r of the result is row r reduced, halves upon halves, as `reduce_add` and `reduce_max` do.
template <class Combine>
inline Floats reduce_rows(Floats (&x)[16], Combine combine) {
  for (int r = 0; r < 8; ++r) {
    x[r] = combine(_mm512_shuffle_f32x4(x[r], x[r + 8], 0x44),
                   _mm512_shuffle_f32x4(x[r], x[r + 8], 0xee));
  }
  for (int r = 0; r < 4; ++r) {
    x[r] = combine(_mm512_shuffle_f32x4(x[r], x[r + 4], 0x88),
                   _mm512_shuffle_f32x4(x[r], x[r + 4], 0xdd));
  }
  for (int r = 0; r < 2; ++r) {
    x[r] = combine(_mm512_shuffle_ps(x[r], x[r + 2], 0x44), _mm512_shuffle_ps(x[r], x[r + 2], 0xee));
  }
  const Floats all =
      combine(_mm512_shuffle_ps(x[0], x[1], 0x88), _mm512_shuffle_ps(x[0], x[1], 0xdd));
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return _mm512_permutexvar_ps(order, all);
}

// 2^x; exactly 0 below the normal range, exactly 1 at 0.
inline Floats exp2(Floats x) {
  const __mmask16 is_normal = _mm512_cmp_ps_mask(x, set1(-126.0f), _CMP_GE_OQ);
  const Floats n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Floats f = _mm512_sub_ps(x, n);
  Floats p = set1(1.5403530e-4f);
  p = fma(p, f, set1(1.3333558e-3f));
  p = fma(p, f, set1(9.6181291e-3f));
  p = fma(p, f, set1(5.5504109e-2f));
  p = fma(p, f, set1(2.4022651e-1f));
  p = fma(p, f, set1(6.9314718e-1f));
  p = fma(p, f, set1(1.0f));
  return _mm512_maskz_scalef_ps(is_normal, p, n);
}

inline Floats keep_first(Floats x, int count, float other) {
  const __mmask16 keep = count >= 16 ? 0xffff : __mmask16((1u << count) - 1);
  return _mm512_mask_blend_ps(keep, set1(other), x);
}

inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }

inline void store_int8(int8_t* p, Floats x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
}
inline void store_int16(int16_t* p, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
}

inline Ints zero_ints() { return _mm512_setzero_si512(); }
inline Sum4 zero_sum4() { return _mm512_setzero_si512(); }

inline Ints load_ints(const int32_t* p) { return _mm512_loadu_si512(p); }
inline Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
template <int kBits>
inline Ints shift_left(Ints x) {
  return _mm512_slli_epi32(x, kBits);
}

inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void store_bytes(uint8_t* p, Bytes x) { _mm512_storeu_si512(p, x); }
inline Bytes low_nibbles(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Bytes high_nibbles(Bytes x) {
  return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15));
}
inline Bytes broadcast4(const int8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  return _mm512_set1_epi32(bits);
}
inline Words load_words(const int16_t* p) { return _mm512_loadu_si512(p); }
inline Words broadcast2(const int16_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  return _mm512_set1_epi32(bits);
}
inline Words widen_bytes(const uint8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline Sum4 dot4(Sum4 sum, Bytes w, Bytes x) { return _mm512_dpbusd_epi32(sum, w, x); }
inline Ints total(Sum4 sum) { return sum; }
inline Ints dot2(Ints sum, Words w, Words x) { return _mm512_dpwssd_epi32(sum, w, x); }

// 64 values on their way to or from the wire, in their order.
struct Four { Floats v[4]; };

inline Four load_floats(const float* p) {
  return {load(p), load(p + 16), load(p + 32), load(p + 48)};
}
inline void store_floats(float* p, const Four& x) {
  for (int i = 0; i < 4; ++i) store(p + 16 * i, x.v[i]);
}
inline Four load_halves(const uint16_t* p) {
  return {load_half(p), load_half(p + 16), load_half(p + 32), load_half(p + 48)};
}
inline void store_halves(uint16_t* p, const Four& x) {
  for (int i = 0; i < 4; ++i) store_half(p + 16 * i, x.v[i]);
}
inline Four load_bfloats(const uint16_t* p) {
  Four x;
  for (int i = 0; i < 4; ++i) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16 * i));
    x.v[i] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
  }
  return x;
}
// Rounds to nearest even; numbers alone.
inline void store_bfloats(uint16_t* p, const Four& x) {
  for (int i = 0; i < 4; ++i) {
    const __m512i bits = _mm512_castps_si512(x.v[i]);
    const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), is_odd);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16 * i),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }
}
// Signed bytes times a factor.
inline Four load_scaled(const uint8_t* p, Floats factor) {
  Four x;
  for (int i = 0; i < 4; ++i) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
    x.v[i] = mul(to_floats(_mm512_cvtepi8_epi32(bytes)), factor);
  }
  return x;
}
// The lowest byte of every value's bits.
inline void store_low_bytes(uint8_t* p, const Four& x) {
  for (int i = 0; i < 4; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16 * i),
                     _mm512_cvtepi32_epi8(_mm512_castps_si512(x.v[i])));
  }
}
// x / y with the bits of a division; see the same in simd_avx2.h.
inline Floats divide(Floats x, Floats y, Floats inverse) {
  const Floats q = mul(x, inverse);
  return fma(_mm512_fnmadd_ps(q, y, x), inverse, q);
}
// Bits of magnitudes, which compare as the magnitudes do; what is no number is the largest.
inline Ints larger_bits(Ints a, Floats x) {
  return _mm512_max_epi32(a, _mm512_castps_si512(abs(x)));
}
inline uint32_t largest_bits(Ints a) { return uint32_t(_mm512_reduce_max_epi32(a)); }
// The same of `count` bfloat16, a multiple of 64, as bits of a float.
inline uint32_t largest_bits_bfloat(const uint16_t* p, int count) {
  __m512i most = _mm512_setzero_si512();
  for (int i = 0; i < count; i += 32) {
    const __m512i words = _mm512_loadu_si512(p + i);
    most = _mm512_max_epu16(most, _mm512_and_si512(words, _mm512_set1_epi16(0x7fff)));
  }
  const __m256i half =
      _mm256_max_epu16(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
  const __m128i part =
      _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // There is an instruction for the least of eight words.
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(part, _mm_set1_epi16(-1)));
  return uint32_t(0xffff - _mm_extract_epi16(least, 0)) << 16;
}

inline void pause() { _mm_pause(); }

}  // namespace simd
