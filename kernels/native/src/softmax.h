// Softmaxes in the making: rows of queries, blocks of keys, and what a block adds to a row.
// Source: Dao 2023, arXiv:2307.08691.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "heads.h"

namespace lw {

constexpr int kBlock = 64;
constexpr int kStrip = 16;     // keys whose scores are computed together

// A block of keys and values, by strips of kStrip keys.
struct Block {
  const int16_t* keys[kBlock / kStrip];
  const int16_t* values[kBlock / kStrip];
  const float* key_scales[kBlock / kStrip];
  const float* value_scales[kBlock / kStrip];
  int64_t pair_stride;  // words from a pair of a key's dims to the next
  int64_t start;        // position of the first key
};

inline Block block_at(const Heads& h, int16_t* cache, const int32_t* pages, int64_t head,
                      int64_t start, int64_t end) {
  Block block{};
  block.pair_stride = 2 * h.page_size;
  block.start = start;
  for (int s = 0; s < kBlock / kStrip && start + s * kStrip < end; ++s) {
    const int64_t position = start + s * kStrip, offset = position % h.page_size;
    int16_t* keys = keys_at(h, cache, pages[position / h.page_size], head);
    int16_t* values = keys + part_elements(h);
    block.keys[s] = keys + 2 * offset;
    block.values[s] = values + offset * h.head_dim;
    block.key_scales[s] = scales_of(h, keys) + offset;
    block.value_scales[s] = scales_of(h, values) + offset;
  }
  return block;
}

// A softmax in the making: the largest score (in powers of two), the sum, the weighted values.
struct Partial {
  float largest;
  float sum;
  float* acc;  // (D)
};

inline void merge(Partial& total, const Partial& part, int64_t dim) {
  using namespace simd;
  const float largest = std::max(total.largest, part.largest);
  float factors[2 * kLanes];
  store(factors, exp2(set1(total.largest - largest)));
  store(factors + kLanes, exp2(set1(part.largest - largest)));
  const Floats a = set1(factors[0]), b = set1(factors[kLanes]);
  for (int64_t d = 0; d < dim; d += kLanes) {
    store(total.acc + d, fma(load(part.acc + d), b, mul(load(total.acc + d), a)));
  }
  total.sum = total.sum * factors[0] + part.sum * factors[kLanes];
  total.largest = largest;
}

// Weights of a block's values for one row, as integers and their scale.
struct Weights {
  alignas(64) int16_t words[kBlock];
  float scale;
  float correction;  // of what was summed before
};

// The softmax of a row's scores with a block; what it weighs the values with.
inline void weigh(const Block& block, const float* scores, int64_t seen, int num_strips,
                  Partial& row, Weights& out) {
  using namespace simd;
  constexpr int kVectors = kStrip / kLanes;
  const int count = num_strips * kVectors;
  out.correction = 1.0f;
  out.scale = 0.0f;
  if (seen <= 0) {
    std::fill(out.words, out.words + num_strips * kStrip, int16_t(0));
    return;
  }
  Floats largest = set1(row.largest);
  Floats x[kBlock / kLanes];
  for (int v = 0; v < count; ++v) {
    x[v] = load(scores + v * kLanes);
    if (seen < (v + 1) * kLanes) {
      const int64_t kept = seen - v * kLanes;
      x[v] = keep_first(x[v], kept < 0 ? 0 : int(kept), -INFINITY);
    }
    largest = max(largest, x[v]);
  }
  const float peak = reduce_max(largest);
  Floats sum = zero(), heaviest = zero();
  for (int v = 0; v < count; ++v) {
    x[v] = exp2(sub(x[v], set1(peak)));
    sum = add(sum, x[v]);
    // The scales of the values are part of their weights.
    x[v] = mul(x[v], load(block.value_scales[v / kVectors] + v % kVectors * kLanes));
    heaviest = max(heaviest, x[v]);
  }
  const float most = reduce_max(heaviest);
  const Floats inverse = set1(most > 0.0f ? kMostWeight / most : 0.0f);
  for (int v = 0; v < count; ++v) store_int16(out.words + v * kLanes, mul(x[v], inverse));
  float factor[kLanes];
  store(factor, exp2(set1(row.largest - peak)));
  out.correction = factor[0];
  out.scale = most / kMostWeight;
  row.sum = row.sum * factor[0] + reduce_add(sum);
  row.largest = peak;
}

// Rows that are worked on together, in order of position.
template <int kRows>
struct RowTile {
  QueryHead queries[kRows];
  int32_t positions[kRows];
  Partial* partials[kRows];

  // `count` rows from row `first` of the query on.
  RowTile(const Query& query, int64_t first, int count, Partial* parts) {
    for (int r = 0; r < count; ++r) {
      queries[r] = query.words(first + r);
      positions[r] = query.position(first + r);
      partials[r] = parts + first + r;
    }
  }
};

// Strips of a block that a row at `position` sees.
inline int num_strips_for(const Block& block, int64_t position) {
  const int64_t num_keys = std::min<int64_t>(kBlock, position - block.start + 1);
  return int((num_keys + kStrip - 1) / kStrip);
}

}  // namespace lw
