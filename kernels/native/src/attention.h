// Attention of new tokens over a paged cache of 16-bit integers.
//
// A head's keys and values are integers with one scale a token: products of them are summed as
// integers, exactly, at twice the rate of float32. A page of a key/value head holds its keys in
// pairs of dims, (D / 2, Z, 2), their scales (Z), its values in pairs of tokens, (Z / 2, D, 2), and
// their scales (Z): scores of neighbouring keys are neighbours, and nothing is summed across lanes.
// The pages of a layer are (P, K, 2, (D + 2) Z) words; a scale takes two.
//
// What a query sees is cut by absolute position: segments of kSegment keys, each an online softmax
// over blocks of kBlock keys, merged in order. So a row's result depends neither on the chunk that
// brought it nor on the other rows, and segments of one row can be spread over threads.
// Source: Dao 2023, arXiv:2307.08691; Kwon et al. 2023, arXiv:2309.06180, section 4.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd.h"

namespace lw {

constexpr int kBlock = 64;
constexpr int kSegment = 256;
constexpr int kTile = 6;       // rows whose scores are kept in registers
constexpr int kStrip = 16;     // keys whose scores are computed together
constexpr int kLongQueries = 32;  // queries of a chunk that share one reading of the keys

// Largest integers of keys and values, of the weights of values, and of queries: sums of D or
// kBlock products stay below 2^31.
constexpr float kMostStored = 8191.0f;
constexpr float kMostWeight = 4095.0f;
inline float most_query(int64_t dim) { return dim <= 64 ? 4095.0f : dim <= 128 ? 2047.0f : 1023.0f; }

struct Heads {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t page_size;
  float eps;             // of the heads' norms
  const float* q_norm;   // (D), or null
  const float* k_norm;
};

// One step. Rows lie in spans, each of consecutive positions of one sequence.
struct Step {
  int64_t num_rows;
  int64_t num_spans;
  const int32_t* positions;  // (N)
  const int32_t* row_span;   // (N)
  const int32_t* span_row;   // (S + 1)
  const int32_t* pages;      // all spans' pages
  const int32_t* span_page;  // (S + 1), where a span's pages begin
  const float* cosines;      // (positions, D / 2)
  const float* sines;
};

inline int64_t part_elements(const Heads& h) { return (h.head_dim + 2) * h.page_size; }
inline int64_t page_elements(const Heads& h) { return h.num_kv_heads * 2 * part_elements(h); }
inline int16_t* keys_at(const Heads& h, int16_t* cache, int32_t page, int64_t head) {
  return cache + page * page_elements(h) + head * 2 * part_elements(h);
}
// The scales of a page's keys or values, from where those begin.
inline float* scales_of(const Heads& h, int16_t* part) {
  return reinterpret_cast<float*>(part + h.head_dim * h.page_size);
}

inline void normalise_head(float* x, const float* weight, int64_t dim, float eps) {
  using namespace simd;
  Floats sum = zero();
  for (int64_t d = 0; d < dim; d += kLanes) sum = fma(load(x + d), load(x + d), sum);
  const Floats factor = set1(1.0f / std::sqrt(reduce_add(sum) / float(dim) + eps));
  for (int64_t d = 0; d < dim; d += kLanes) {
    store(x + d, mul(mul(load(x + d), factor), load(weight + d)));
  }
}

inline void turn_head(float* x, const float* cosines, const float* sines, int64_t dim) {
  const int64_t half = dim / 2;
  for (int64_t d = 0; d < half; ++d) {
    const float first = x[d], second = x[d + half];
    x[d] = first * cosines[d] - second * sines[d];
    x[d + half] = second * cosines[d] + first * sines[d];
  }
}

// Rounds a head to integers of at most `most`; returns their scale. Shapes: x and out (D).
inline float to_words(const float* x, int64_t dim, float most, int16_t* out) {
  using namespace simd;
  Floats largest = zero();
  for (int64_t d = 0; d < dim; d += kLanes) largest = max(largest, abs(load(x + d)));
  const float peak = reduce_max(largest);
  const Floats inverse = set1(peak > 0.0f ? most / peak : 0.0f);
  for (int64_t d = 0; d < dim; d += kLanes) store_int16(out + d, mul(load(x + d), inverse));
  return peak / most;
}

constexpr int64_t kMostDim = 256;

// A query, where its floats were: D words, then their scale.
struct QueryHead {
  const int16_t* words;
  float scale;
};
inline QueryHead query_at(const float* x, int64_t dim) {
  return {reinterpret_cast<const int16_t*>(x), x[dim / 2]};
}

// Head `index` of a row (queries, then keys, then values): norm, turn, and store: queries in place,
// the others in the cache.
inline void place_head(const Heads& h, const Step& step, int16_t* cache, float* fused, int64_t row,
                       int64_t index) {
  const int64_t dim = h.head_dim;
  float* x = fused + (row * (h.num_heads + 2 * h.num_kv_heads) + index) * dim;
  const int64_t position = step.positions[row];
  const bool is_query = index < h.num_heads;
  const bool is_key = !is_query && index < h.num_heads + h.num_kv_heads;
  if (is_query || is_key) {
    const float* weight = is_query ? h.q_norm : h.k_norm;
    if (weight != nullptr) normalise_head(x, weight, dim, h.eps);
    turn_head(x, step.cosines + position * (dim / 2), step.sines + position * (dim / 2), dim);
  }
  alignas(64) int16_t words[kMostDim];
  const float scale = to_words(x, dim, is_query ? most_query(dim) : kMostStored, words);
  if (is_query) {
    // Scores in powers of two: exp(s) = 2^(s log2(e)).
    std::memcpy(x, words, 2 * dim);
    x[dim / 2] = scale * (1.44269504f / std::sqrt(float(dim)));
    return;
  }
  const int64_t head = (index - h.num_heads) % h.num_kv_heads;
  const int32_t* pages = step.pages + step.span_page[step.row_span[row]];
  const int64_t size = h.page_size, slot = position % size;
  int16_t* out = keys_at(h, cache, pages[position / size], head);
  if (!is_key) out += part_elements(h);
  scales_of(h, out)[slot] = scale;
  if (is_key) {
    for (int64_t d = 0; d < dim; d += 2) std::memcpy(out + d * size + 2 * slot, words + d, 4);
    return;
  }
  out += slot / 2 * 2 * dim + slot % 2;
  for (int64_t d = 0; d < dim; ++d) out[2 * d] = words[d];
}

// Strips, and columns of 16 values, that are worked on together: more sums in flight hide the
// latency of one and share what is read, as far as there are registers.
template <int kRows>
constexpr int kTogether = simd::kLanes == 16 ? (kRows <= 3 ? 4 : 2) : (kRows <= 3 ? 2 : 1);

// A block of keys and values, by strips of kStrip keys.
struct Block {
  const int16_t* keys[kBlock / kStrip];
  const int16_t* values[kBlock / kStrip];
  const float* key_scales[kBlock / kStrip];
  const float* value_scales[kBlock / kStrip];
  int64_t pair_stride;  // words from a pair of a key's dims to the next
  int64_t start;        // position of the first key
};

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

// Weights of a block's values for one row, as integers and their scale.
struct Weights {
  alignas(64) int16_t words[kBlock];
  float scale;
  float correction;  // of what was summed before
};

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

// A tile of rows against one block of keys: rows in order of position.
template <int kRows>
inline void tile_block(const Block& block, const QueryHead* q, const int32_t* positions,
                       Partial* const* rows, int64_t dim) {
  float scores[kRows][kBlock];
  Weights weights[kRows];
  const int32_t last = positions[kRows - 1];
  const int64_t num_keys = std::min<int64_t>(kBlock, last - block.start + 1);
  const int num_strips = int((num_keys + kStrip - 1) / kStrip);
  constexpr int kStrips = kTogether<kRows>;
  int strip = 0;
  for (; strip + kStrips <= num_strips; strip += kStrips) {
    score_strips<kRows, kStrips>(q, block, strip, dim, scores);
  }
  for (; strip < num_strips; ++strip) score_strips<kRows, 1>(q, block, strip, dim, scores);
  float* acc[kRows];
  for (int r = 0; r < kRows; ++r) {
    weigh(block, scores[r], positions[r] - block.start + 1, num_strips, *rows[r], weights[r]);
    acc[r] = rows[r]->acc;
  }
  add_values<kRows>(acc, weights, block, num_strips, dim);
}

inline void tile_block_of(int num_rows, const Block& block, const QueryHead* q,
                          const int32_t* positions, Partial* const* rows, int64_t dim) {
  switch (num_rows) {
    case 1: return tile_block<1>(block, q, positions, rows, dim);
    case 2: return tile_block<2>(block, q, positions, rows, dim);
    case 3: return tile_block<3>(block, q, positions, rows, dim);
    case 4: return tile_block<4>(block, q, positions, rows, dim);
    case 5: return tile_block<5>(block, q, positions, rows, dim);
    default: return tile_block<6>(block, q, positions, rows, dim);
  }
}

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

// Queries [first, end) of a span with one key/value head and segment; partials by (query, group).
struct Query {
  const Heads* heads;
  const Step* step;
  int16_t* cache;
  const float* fused;  // (N, H + 2K, D), queries as `query_at` reads them
  int64_t head;        // key/value head
  int64_t first;       // rows of the step
  int64_t end;
};

inline void attend_segment(const Query& query, int64_t segment, Partial* parts) {
  const Heads& h = *query.heads;
  const int64_t group = h.num_heads / h.num_kv_heads, dim = h.head_dim;
  const int64_t num_rows = (query.end - query.first) * group;
  const int64_t width = (h.num_heads + 2 * h.num_kv_heads) * dim;
  const int32_t* positions = query.step->positions;
  const int32_t* pages =
      query.step->pages + query.step->span_page[query.step->row_span[query.first]];
  const int64_t last = positions[query.end - 1] + 1;
  const int64_t begin = segment * kSegment, stop = std::min<int64_t>(begin + kSegment, last);
  for (int64_t r = 0; r < num_rows; ++r) {
    parts[r].largest = -INFINITY;
    parts[r].sum = 0.0f;
    std::fill(parts[r].acc, parts[r].acc + dim, 0.0f);
  }
  for (int64_t start = begin; start < stop; start += kBlock) {
    const Block block = block_at(h, query.cache, pages, query.head, start, stop);
    for (int64_t tile = 0; tile < num_rows; tile += kTile) {
      const int count = int(std::min<int64_t>(kTile, num_rows - tile));
      QueryHead q[kTile];
      int32_t at[kTile];
      Partial* rows[kTile];
      for (int r = 0; r < count; ++r) {
        const int64_t row = query.first + (tile + r) / group;
        const int64_t head = query.head * group + (tile + r) % group;
        q[r] = query_at(query.fused + row * width + head * dim, dim);
        at[r] = positions[row];
        rows[r] = parts + tile + r;
      }
      if (at[count - 1] < start) continue;
      tile_block_of(count, block, q, at, rows, dim);
    }
  }
}

}  // namespace lw
