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

// 32 values on their way to or from the wire. A pair of registers holds 16 neighbours, the even and
// the odd ones, so that values of 16 bits come and go by a shift, a mask and a blend. All loads and
// stores of four share this order.
struct Four { Floats v[4]; };

inline Four even_and_odd(const Four& x) {
  Four y;
  for (int i = 0; i < 4; i += 2) {
    const __m256 even = _mm256_shuffle_ps(x.v[i], x.v[i + 1], 0x88);
    const __m256 odd = _mm256_shuffle_ps(x.v[i], x.v[i + 1], 0xdd);
    y.v[i] = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
    y.v[i + 1] = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8));
  }
  return y;
}
inline Four neighbours(const Four& x) {
  Four y;
  for (int i = 0; i < 4; i += 2) {
    const __m256 low = _mm256_unpacklo_ps(x.v[i], x.v[i + 1]);
    const __m256 high = _mm256_unpackhi_ps(x.v[i], x.v[i + 1]);
    y.v[i] = _mm256_permute2f128_ps(low, high, 0x20);
    y.v[i + 1] = _mm256_permute2f128_ps(low, high, 0x31);
  }
  return y;
}

inline Four load_floats(const float* p) {
  return even_and_odd({load(p), load(p + 8), load(p + 16), load(p + 24)});
}
inline void store_floats(float* p, const Four& x) {
  const Four y = neighbours(x);
  for (int i = 0; i < 4; ++i) store(p + 8 * i, y.v[i]);
}
inline Four load_halves(const uint16_t* p) {
  return even_and_odd({load_half(p), load_half(p + 8), load_half(p + 16), load_half(p + 24)});
}
inline void store_halves(uint16_t* p, const Four& x) {
  const Four y = neighbours(x);
  for (int i = 0; i < 4; ++i) store_half(p + 8 * i, y.v[i]);
}
inline Four load_bfloats(const uint16_t* p) {
  const __m256i upper = _mm256_set1_epi32(int32_t(0xffff0000u));
  Four x;
  for (int i = 0; i < 4; i += 2) {
    const __m256i both = load_words(reinterpret_cast<const int16_t*>(p) + 8 * i);
    x.v[i] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    x.v[i + 1] = _mm256_castsi256_ps(_mm256_and_si256(both, upper));
  }
  return x;
}
// Nearest even in the upper half; of numbers alone.
inline __m256i rounded_bfloat(Floats x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), is_odd);
}
inline void store_bfloats(uint16_t* p, const Four& x) {
  for (int i = 0; i < 4; i += 2) {
    const __m256i even = _mm256_srli_epi32(rounded_bfloat(x.v[i]), 16);
    store_bytes(reinterpret_cast<uint8_t*>(p + 8 * i),
                _mm256_blend_epi16(even, rounded_bfloat(x.v[i + 1]), 0xaa));
  }
}
// Signed bytes times a factor. They are widened in the upper bits of their lanes, which saves a
// shift: 2^24 is taken back from the factor, which is exact away from the ends of the range.
inline Four load_scaled(const uint8_t* p, Floats factor) {
  // Which byte goes to the top of a lane; 0x80 leaves zeros below it.
  const __m256i even = _mm256_setr_epi32(0x00808080, 0x02808080, 0x04808080, 0x06808080, 0x08808080,
                                         0x0a808080, 0x0c808080, 0x0e808080);
  const __m256i odd = _mm256_add_epi32(even, _mm256_set1_epi32(0x01000000));
  const Floats small = mul(factor, set1(0x1p-24f));
  Four x;
  for (int i = 0; i < 4; i += 2) {
    const __m256i bytes = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * i)));
    x.v[i] = mul(to_floats(_mm256_shuffle_epi8(bytes, even)), small);
    x.v[i + 1] = mul(to_floats(_mm256_shuffle_epi8(bytes, odd)), small);
  }
  return x;
}
// The lowest byte of every value's bits.
inline void store_low_bytes(uint8_t* p, const Four& x) {
  __m256i words[2];
  for (int i = 0; i < 2; ++i) {
    const __m256i odd = _mm256_slli_epi32(_mm256_castps_si256(x.v[2 * i + 1]), 16);
    const __m256i both = _mm256_blend_epi16(_mm256_castps_si256(x.v[2 * i]), odd, 0xaa);
    words[i] = _mm256_and_si256(both, _mm256_set1_epi16(0xff));
  }
  const __m256i packed = _mm256_packus_epi16(words[0], words[1]);
  store_bytes(p, _mm256_permute4x64_epi64(packed, 0xd8));
}
// x / y with the bits of a division, where `inverse` is 1 / y, y has 16 significant bits and neither
// is near an end of the range. One step of refinement leaves an error of 2^-46, and a quotient of 24
// by 16 bits is never nearer than 2^-41 to where its rounding changes.
inline Floats divide(Floats x, Floats y, Floats inverse) {
  const Floats q = mul(x, inverse);
  return fma(_mm256_fnmadd_ps(q, y, x), inverse, q);
}
// Bits of magnitudes, which compare as the magnitudes do; what is no number is the largest.
inline Ints larger_bits(Ints a, Floats x) {
  return _mm256_max_epi32(a, _mm256_castps_si256(abs(x)));
}
inline uint32_t largest_bits(Ints a) {
  __m128i most = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1));
  return uint32_t(_mm_cvtsi128_si32(most));
}
// The same of `count` bfloat16, a multiple of 32, as bits of a float.
inline uint32_t largest_bits_bfloat(const uint16_t* p, int count) {
  __m256i most = _mm256_setzero_si256();
  for (int i = 0; i < count; i += 16) {
    const __m256i words = load_words(reinterpret_cast<const int16_t*>(p) + i);
    most = _mm256_max_epu16(most, _mm256_and_si256(words, _mm256_set1_epi16(0x7fff)));
  }
  const __m128i half =
      _mm_max_epu16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  // There is an instruction for the least of eight words.
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
  return uint32_t(0xffff - _mm_extract_epi16(least, 0)) << 16;
}

inline void pause() { _mm_pause(); }

}  // namespace simd
