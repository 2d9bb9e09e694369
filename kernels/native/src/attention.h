// Attention of new tokens over a paged cache of 16-bit integers.
//
// What a query sees is cut by absolute position: segments of kSegment keys, each an online softmax
// over blocks of kBlock keys, merged in order. So a row's result depends neither on the chunk that
// brought it nor on the other rows, and segments of one row can be spread over threads.
// Source: Dao 2023, arXiv:2307.08691; Kwon et al. 2023, arXiv:2309.06180, section 4.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tile_attention.h"

namespace lw {

constexpr int kSegment = 256;
constexpr int kTile = 6;          // rows whose scores are kept in registers
constexpr int kLongQueries = 32;  // queries of a chunk that share one reading of the keys

// Strips, and columns of 16 values, that are worked on together: more sums in flight hide the
// latency of one and share what is read, as far as there are registers.
template <int kRows>
constexpr int kTogether = simd::kLanes == 16 ? (kRows <= 3 ? 4 : 2) : (kRows <= 3 ? 2 : 1);

// Scores of kRows queries with kStrips strips of keys.
template <int kRows, int kStrips>
inline void score_strips(const QueryHead* q, const Block& block, int first, int64_t dim,
                         float (*scores)[kBlock]) {
  using namespace simd;
  constexpr int kVectors = kStrip / kLanes;
  constexpr int kWide = kStrips * kVectors;
  Ints sum[kRows][kWide];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) sum[r][v] = zero_ints();
  }
  for (int64_t d = 0; d < dim; d += 2) {
    Words k[kWide];
    for (int v = 0; v < kWide; ++v) {
      const int16_t* strip = block.keys[first + v / kVectors];
      k[v] = load_words(strip + d / 2 * block.pair_stride + v % kVectors * 2 * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Words x = broadcast2(q[r].words + d);
      for (int v = 0; v < kWide; ++v) sum[r][v] = dot2(sum[r][v], k[v], x);
    }
  }
  for (int v = 0; v < kWide; ++v) {
    const int strip = first + v / kVectors, lane = v % kVectors * kLanes;
    const Floats scale = load(block.key_scales[strip] + lane);
    for (int r = 0; r < kRows; ++r) {
      const Floats score = mul(to_floats(sum[r][v]), mul(scale, set1(q[r].scale)));
      store(scores[r] + strip * kStrip + lane, score);
    }
  }
}

// kWide vectors of columns from `d` on.
template <int kRows, int kWide>
inline void add_columns(float* const* acc, const Weights* weights, const Block& block,
                        int num_strips, int64_t dim, int64_t d) {
  using namespace simd;
  Ints sum[kRows][kWide];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) sum[r][v] = zero_ints();
  }
  for (int s = 0; s < num_strips; ++s) {
    const int16_t* pairs = block.values[s] + 2 * d;
    for (int t = 0; t < kStrip; t += 2, pairs += 2 * dim) {
      Words x[kWide];
      for (int v = 0; v < kWide; ++v) x[v] = load_words(pairs + v * 2 * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Words weight = broadcast2(weights[r].words + s * kStrip + t);
        for (int v = 0; v < kWide; ++v) sum[r][v] = dot2(sum[r][v], x[v], weight);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) {
      float* at = acc[r] + d + v * kLanes;
      const Floats before = mul(load(at), set1(weights[r].correction));
      store(at, fma(to_floats(sum[r][v]), set1(weights[r].scale), before));
    }
  }
}

// acc = acc * correction + weights (kRows, keys) x values (keys, D), strip after strip.
template <int kRows>
inline void add_values(float* const* acc, const Weights* weights, const Block& block, int num_strips,
                       int64_t dim) {
  using namespace simd;
  constexpr int kColumns = kTogether<kRows> * kStrip;
  constexpr int kWide = kColumns / kLanes;
  int64_t d = 0;
  for (; d + kColumns <= dim; d += kColumns) {
    add_columns<kRows, kWide>(acc, weights, block, num_strips, dim, d);
  }
  for (; d < dim; d += kStrip) {
    add_columns<kRows, kStrip / kLanes>(acc, weights, block, num_strips, dim, d);
  }
}

// A tile of rows against one block of keys.
template <int kRows>
inline void attend_block(const Block& block, const RowTile<kTile>& rows, int64_t dim) {
  float scores[kRows][kBlock];
  Weights weights[kRows];
  const int num_strips = num_strips_for(block, rows.positions[kRows - 1]);
  constexpr int kStrips = kTogether<kRows>;
  int strip = 0;
  for (; strip + kStrips <= num_strips; strip += kStrips) {
    score_strips<kRows, kStrips>(rows.queries, block, strip, dim, scores);
  }
  for (; strip < num_strips; ++strip) {
    score_strips<kRows, 1>(rows.queries, block, strip, dim, scores);
  }
  float* acc[kRows];
  for (int r = 0; r < kRows; ++r) {
    weigh(block, scores[r], rows.positions[r] - block.start + 1, num_strips, *rows.partials[r],
          weights[r]);
    acc[r] = rows.partials[r]->acc;
  }
  add_values<kRows>(acc, weights, block, num_strips, dim);
}

inline void attend_block_of(int num_rows, const Block& block, const RowTile<kTile>& rows,
                            int64_t dim) {
  switch (num_rows) {
    case 1: return attend_block<1>(block, rows, dim);
    case 2: return attend_block<2>(block, rows, dim);
    case 3: return attend_block<3>(block, rows, dim);
    case 4: return attend_block<4>(block, rows, dim);
    case 5: return attend_block<5>(block, rows, dim);
    default: return attend_block<6>(block, rows, dim);
  }
}

// One segment of keys for all rows of a query, begun anew; `room` is null where rows are few.
inline void attend_segment(const Query& query, int64_t segment, const TileRoom* room,
                           Partial* parts) {
  const int64_t dim = query.heads->head_dim, num_rows = query.num_rows();
  const int64_t last = query.position(num_rows - 1) + 1;
  const int64_t begin = segment * kSegment, stop = std::min<int64_t>(begin + kSegment, last);
  for (int64_t r = 0; r < num_rows; ++r) {
    parts[r].largest = -INFINITY;
    parts[r].sum = 0.0f;
    std::fill(parts[r].acc, parts[r].acc + dim, 0.0f);
  }
  for (int64_t start = begin; start < stop; start += kBlock) {
    const Block block =
        block_at(*query.heads, query.cache, query.pages(), query.head, start, stop);
    const int64_t tiled = attend_in_tiles(query, room, block, last, parts);
    for (int64_t first = tiled; first < num_rows; first += kTile) {
      const int count = int(std::min<int64_t>(kTile, num_rows - first));
      const RowTile<kTile> rows(query, first, count, parts);
      if (rows.positions[count - 1] >= start) attend_block_of(count, block, rows, dim);
    }
  }
}

}  // namespace lw
