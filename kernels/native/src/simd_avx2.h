// Primitives for AVX2 with FMA and F16C: 8 lanes of 32 bits.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace simd {

constexpr int kLanes = 8;
constexpr const char* kName = "avx2";

using Floats = __m256;
using Ints = __m256i;
using Bytes = __m256i;   // 4 bytes a lane
using Words = __m256i;   // 2 words of 16 bits a lane
using Sum4 = __m256i;    // pairs of 16-bit sums: room for 8 products of 4 bits by 8 bits each

inline Floats zero() { return _mm256_setzero_ps(); }
inline Floats set1(float x) { return _mm256_set1_ps(x); }
inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats abs(Floats a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline Floats round(Floats a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline Floats load_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store_half(uint16_t* p, Floats x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

inline float reduce_add(Floats x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float reduce_max(Floats x) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

// 2^x; exactly 0 below the normal range, exactly 1 at 0.
inline Floats exp2(Floats x) {
  const Floats n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Floats f = _mm256_sub_ps(x, n);
  Floats p = set1(1.5403530e-4f);
  p = fma(p, f, set1(1.3333558e-3f));
  p = fma(p, f, set1(9.6181291e-3f));
  p = fma(p, f, set1(5.5504109e-2f));
  p = fma(p, f, set1(2.4022651e-1f));
  p = fma(p, f, set1(6.9314718e-1f));
  p = fma(p, f, set1(1.0f));
  const __m256i shifted = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  const Floats y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shifted));
  return _mm256_and_ps(y, _mm256_cmp_ps(x, set1(-126.0f), _CMP_GE_OQ));
}

// Lanes whose index is below `count` keep their value, the others become `other`.
inline Floats keep_first(Floats x, int count, float other) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i keep = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), index);
  return _mm256_blendv_ps(set1(other), x, _mm256_castsi256_ps(keep));
}

inline Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }

// Rounds to nearest even into 8 bits; values must fit.
inline void store_int8(int8_t* p, Floats x) {
  const __m256i wide = _mm256_cvtps_epi32(x);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
inline void store_int16(int16_t* p, Floats x) {
  const __m256i wide = _mm256_cvtps_epi32(x);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), words);
}

inline Ints zero_ints() { return _mm256_setzero_si256(); }
inline Sum4 zero_sum4() { return _mm256_setzero_si256(); }

inline Bytes load_bytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline void store_bytes(uint8_t* p, Bytes x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
}
inline Bytes low_nibbles(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline Bytes high_nibbles(Bytes x) {
  return _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15));
}
inline Bytes broadcast4(const int8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  return _mm256_set1_epi32(bits);
}
inline Words load_words(const int16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Words broadcast2(const int16_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  return _mm256_set1_epi32(bits);
}
// Signed bytes, two a lane, as words.
inline Words widen_bytes(const uint8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Four products a lane: unsigned w of at most 4 bits by signed x; at most 8 before `total`.
inline Sum4 dot4(Sum4 sum, Bytes w, Bytes x) {
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
}
inline Ints total(Sum4 sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
inline Ints dot2(Ints sum, Words w, Words x) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
}

inline void pause() { _mm_pause(); }

}  // namespace simd
