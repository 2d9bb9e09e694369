// The rows that a quantised matrix is multiplied by, as integers with one scale a row and group.
#pragma once
#include <algorithm>
#include <cstdint>

#include "weights.h"

namespace lw {

// Rows that a product takes from tiles instead of registers: none where there are no tiles, else
// whole tiles and, where they are most of one, the last rows, whose tile then is not full.
inline int64_t tiled_rows(int64_t num_rows) {
#ifdef LW_TILES
  constexpr int64_t kFrom = 9;  // a tile takes as long as this many rows in registers
  if (tiles::are_allowed()) {
    const int64_t rest = num_rows % tiles::kRows;
    return num_rows - rest + (rest >= kFrom ? tiles::kRows : 0);
  }
#endif
  (void)num_rows;
  return 0;
}

// Activations of `num_rows` rows: int8 for weights of 4 bits (step: the group's largest value /
// 127), int16 for weights of 8 bits (/ 32767), whose tiled rows hold all high bytes and then all
// low ones. `sums` are the groups' sums of the rounded values.
struct Activations {
  uint8_t* quants;
  float* scales;  // (groups, padded rows): a product reads neighbouring rows
  float* sums;    // (groups, padded rows)
  int64_t num_rows;
  int64_t padded_rows;  // with those that only fill a tile
  int64_t num_columns;
  int32_t group;
  int32_t bits;  // of the weights they are made for

  static int64_t padded(int64_t num_rows) { return std::max(num_rows, tiled_rows(num_rows)); }
  static int64_t quant_bytes(const Weight& w, int64_t num_rows) {
    return (padded(num_rows) * w.num_columns * (w.bits == 4 ? 1 : 2) + 63) / 64 * 64;
  }
  static int64_t bytes(const Weight& w, int64_t num_rows) {
    return quant_bytes(w, num_rows) + 2 * 4 * padded(num_rows) * num_groups(w) + 64;
  }
  static Activations in(void* memory, const Weight& w, int64_t num_rows) {
    Activations a;
    a.quants = static_cast<uint8_t*>(memory);
    a.scales = reinterpret_cast<float*>(a.quants + quant_bytes(w, num_rows));
    a.sums = a.scales + padded(num_rows) * num_groups(w);
    a.num_rows = num_rows;
    a.padded_rows = padded(num_rows);
    a.num_columns = w.num_columns;
    a.group = w.group;
    a.bits = w.bits;
    return a;
  }
  int64_t row_bytes() const { return num_columns * (bits == 4 ? 1 : 2); }
};

// Rounds a group to integers, stores them where `out` says, and returns their sum: below 2^24, so
// that float32 adds them exactly.
template <class Out, class Store>
inline float round_group(const float* x, int count, float inverse, Out* out, Store store) {
  using namespace simd;
  Floats sum = zero();
  for (int i = 0; i < count; i += kLanes) {
    const Floats rounded = round(mul(load(x + i), set1(inverse)));
    store(out + i, rounded);
    sum = add(sum, rounded);
  }
  return reduce_add(sum);
}

inline void split_words(const int16_t* words, int count, uint8_t* high, uint8_t* low) {
  for (int i = 0; i < count; ++i) {
    high[i] = uint8_t(words[i] >> 8);
    low[i] = uint8_t(words[i]);
  }
}

// Quantises columns [first, first + count) of a row; whole groups only.
inline void quantise(const Activations& a, int64_t row, const float* x, int64_t first, int64_t count) {
  using namespace simd;
  const float limit = a.bits == 4 ? 127.0f : 32767.0f;
  const bool is_split = a.bits == 8 && row < tiled_rows(a.num_rows);
  uint8_t* quants = a.quants + row * a.row_bytes();
  alignas(64) int16_t words[32];
  for (int64_t start = 0; start < count; start += a.group) {
    Floats largest = zero();
    for (int i = 0; i < a.group; i += kLanes) largest = max(largest, abs(load(x + start + i)));
    const float peak = reduce_max(largest);
    const float scale = peak / limit;
    const float inverse = peak > 0.0f ? limit / peak : 0.0f;
    const int64_t column = first + start;
    float sum;
    if (a.bits == 4) {
      sum = round_group(x + start, a.group, inverse, reinterpret_cast<int8_t*>(quants) + column,
                        store_int8);
    } else if (is_split) {
      sum = round_group(x + start, a.group, inverse, words, store_int16);
      split_words(words, a.group, quants + column, quants + a.num_columns + column);
    } else {
      sum = round_group(x + start, a.group, inverse, reinterpret_cast<int16_t*>(quants) + column,
                        store_int16);
    }
    const int64_t at = column / a.group * a.padded_rows;
    a.scales[at + row] = scale;
    a.sums[at + row] = scale * sum;
    if (row + 1 < a.num_rows) continue;
    // What only fills a tile is multiplied too; zeros make that cheap whatever its bytes are.
    std::fill(a.scales + at + a.num_rows, a.scales + at + a.padded_rows, 0.0f);
    std::fill(a.sums + at + a.num_rows, a.sums + at + a.padded_rows, 0.0f);
  }
}

template <bool kIsWide>
inline simd::Floats load_scales(const uint8_t* p) {
  if constexpr (kIsWide) return simd::load(reinterpret_cast<const float*>(p));
  return simd::load_half(reinterpret_cast<const uint16_t*>(p));
}

}  // namespace lw
