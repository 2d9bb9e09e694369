// Attention of new tokens over a paged cache in float16.
//
// A page of a key/value head holds its keys transposed, (D, Z), then its values, (Z, D): scores of
// neighbouring keys are neighbours, and nothing is summed across lanes. The pages of a layer are
// (P, K, 2, D * Z).
//
// What a query sees is cut by absolute position: segments of kSegment keys, each an online softmax
// over blocks of kBlock keys, merged in order. So a row's result depends neither on the chunk that
// brought it nor on the other rows, and segments of one row can be spread over threads.
// Source: Dao 2023, arXiv:2307.08691; Kwon et al. 2023, arXiv:2309.06180, section 4.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "simd.h"

namespace lw {

constexpr int kBlock = 64;
constexpr int kSegment = 256;
constexpr int kTile = 6;       // rows whose scores are kept in registers
constexpr int kStrip = 16;     // keys whose scores are computed together
constexpr int kLongQueries = 32;  // queries of a chunk that share one conversion of the keys

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

inline int64_t page_elements(const Heads& h) {
  return h.num_kv_heads * 2 * h.head_dim * h.page_size;
}
inline const uint16_t* keys_at(const Heads& h, const uint16_t* cache, int32_t page, int64_t head) {
  return cache + page * page_elements(h) + head * 2 * h.head_dim * h.page_size;
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

// Head `index` of a row (queries, then keys, then values): norm, turn, and store in the cache.
inline void place_head(const Heads& h, const Step& step, uint16_t* cache, float* fused, int64_t row,
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
  if (is_query) {
    // Scores in powers of two: exp(s) = 2^(s log2(e)).
    const simd::Floats factor = simd::set1(1.44269504f / std::sqrt(float(dim)));
    for (int64_t d = 0; d < dim; d += simd::kLanes) {
      simd::store(x + d, simd::mul(simd::load(x + d), factor));
    }
    return;
  }
  const int64_t head = (index - h.num_heads) % h.num_kv_heads;
  const int32_t* pages = step.pages + step.span_page[step.row_span[row]];
  const int64_t size = h.page_size, slot = position % size;
  uint16_t* out = cache + (keys_at(h, cache, pages[position / size], head) - cache);
  if (!is_key) {
    out += dim * size + slot * dim;
    for (int64_t d = 0; d < dim; d += simd::kLanes) simd::store_half(out + d, simd::load(x + d));
    return;
  }
  uint16_t halves[simd::kLanes];
  for (int64_t d = 0; d < dim; d += simd::kLanes) {
    simd::store_half(halves, simd::load(x + d));
    for (int lane = 0; lane < simd::kLanes; ++lane) out[(d + lane) * size + slot] = halves[lane];
  }
}

// The keys of kStrip positions: float16 where they lie in the cache, or float32 once converted.
template <class T>
inline simd::Floats load_any(const T* p) {
  if constexpr (sizeof(T) == 2) return simd::load_half(p);
  else return simd::load(p);
}

// Strips, and columns of 16 values, that are worked on together: few rows leave registers free, and
// more sums in flight hide the latency of one.
template <int kRows>
constexpr int kTogether = kRows <= 3 ? 2 : 1;

// Scores of kRows queries with kStrips strips of keys. Shapes: q rows of D; keys (D, stride).
template <int kRows, int kStrips, class T>
inline void score_strips(const float* const* q, const T* const* keys, int64_t stride, int64_t dim,
                         float (*scores)[kBlock]) {
  using namespace simd;
  constexpr int kVectors = kStrip / kLanes;
  constexpr int kWide = kStrips * kVectors;
  Floats sum[kRows][kWide];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) sum[r][v] = zero();
  }
  for (int64_t d = 0; d < dim; ++d) {
    Floats k[kWide];
    for (int v = 0; v < kWide; ++v) {
      k[v] = load_any(keys[v / kVectors] + d * stride + v % kVectors * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Floats x = set1(q[r][d]);
      for (int v = 0; v < kWide; ++v) sum[r][v] = fma(x, k[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) store(scores[r] + v * kLanes, sum[r][v]);
  }
}

// acc = acc * correction + weights (kRows, keys) x values (keys, D), strip after strip.
template <int kRows, class T>
inline void add_values(float* const* acc, const float* correction, const float (*weights)[kBlock],
                       const T* const* values, int num_strips, int64_t dim) {
  using namespace simd;
  constexpr int kColumns = kTogether<kRows> * kStrip;
  constexpr int kWide = kColumns / kLanes;
  for (int64_t d = 0; d < dim; d += kColumns) {
    Floats sum[kRows][kWide];
    for (int r = 0; r < kRows; ++r) {
      const Floats factor = set1(correction[r]);
      for (int v = 0; v < kWide; ++v) sum[r][v] = mul(load(acc[r] + d + v * kLanes), factor);
    }
    for (int s = 0; s < num_strips; ++s) {
      const T* rows = values[s] + d;
      const float* weight = weights[0] + s * kStrip;
      for (int t = 0; t < kStrip; ++t, rows += dim, ++weight) {
        Floats x[kWide];
        for (int v = 0; v < kWide; ++v) x[v] = load_any(rows + v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const Floats factor = set1(weight[r * kBlock]);
          for (int v = 0; v < kWide; ++v) sum[r][v] = fma(factor, x[v], sum[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kWide; ++v) store(acc[r] + d + v * kLanes, sum[r][v]);
    }
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

// A block of keys and values, by strips.
template <class T>
struct Block {
  const T* keys[kBlock / kStrip];
  const T* values[kBlock / kStrip];
  int64_t key_stride;
  int64_t start;  // position of the first key
};

// A tile of rows against one block of keys: rows in order of position.
template <int kRows, class T>
inline void tile_block(const Block<T>& block, const float* const* q, const int32_t* positions,
                       Partial* const* rows, int64_t dim) {
  using namespace simd;
  float scores[kRows][kBlock];
  float correction[kRows];
  const int32_t last = positions[kRows - 1];
  const int64_t num_keys = std::min<int64_t>(kBlock, last - block.start + 1);
  const int num_strips = int((num_keys + kStrip - 1) / kStrip);
  constexpr int kStrips = kTogether<kRows>;
  int strip = 0;
  for (; strip + kStrips <= num_strips; strip += kStrips) {
    const auto at = reinterpret_cast<float(*)[kBlock]>(scores[0] + strip * kStrip);
    score_strips<kRows, kStrips, T>(q, block.keys + strip, block.key_stride, dim, at);
  }
  for (; strip < num_strips; ++strip) {
    const auto at = reinterpret_cast<float(*)[kBlock]>(scores[0] + strip * kStrip);
    score_strips<kRows, 1, T>(q, block.keys + strip, block.key_stride, dim, at);
  }
  for (int r = 0; r < kRows; ++r) {
    const int64_t seen = positions[r] - block.start + 1;
    correction[r] = 1.0f;
    if (seen <= 0) {
      std::fill(scores[r], scores[r] + num_strips * kStrip, 0.0f);
      continue;
    }
    Floats largest = set1(rows[r]->largest);
    Floats x[kBlock / kLanes];
    const int count = num_strips * kStrip / kLanes;
    for (int v = 0; v < count; ++v) {
      x[v] = load(scores[r] + v * kLanes);
      if (seen < (v + 1) * kLanes) {
        const int64_t kept = seen - v * kLanes;
        x[v] = keep_first(x[v], kept < 0 ? 0 : int(kept), -INFINITY);
      }
      largest = max(largest, x[v]);
    }
    const float peak = reduce_max(largest);
    Floats sum = zero();
    for (int v = 0; v < count; ++v) {
      x[v] = exp2(sub(x[v], set1(peak)));
      sum = add(sum, x[v]);
      store(scores[r] + v * kLanes, x[v]);
    }
    float factor[kLanes];
    store(factor, exp2(set1(rows[r]->largest - peak)));
    correction[r] = factor[0];
    rows[r]->sum = rows[r]->sum * correction[r] + reduce_add(sum);
    rows[r]->largest = peak;
  }
  float* acc[kRows];
  for (int r = 0; r < kRows; ++r) acc[r] = rows[r]->acc;
  add_values<kRows, T>(acc, correction, scores, block.values, num_strips, dim);
}

template <class T>
inline void tile_block_of(int num_rows, const Block<T>& block, const float* const* q,
                          const int32_t* positions, Partial* const* rows, int64_t dim) {
  switch (num_rows) {
    case 1: return tile_block<1, T>(block, q, positions, rows, dim);
    case 2: return tile_block<2, T>(block, q, positions, rows, dim);
    case 3: return tile_block<3, T>(block, q, positions, rows, dim);
    case 4: return tile_block<4, T>(block, q, positions, rows, dim);
    case 5: return tile_block<5, T>(block, q, positions, rows, dim);
    default: return tile_block<6, T>(block, q, positions, rows, dim);
  }
}

inline Block<uint16_t> block_at(const Heads& h, const uint16_t* cache, const int32_t* pages,
                                     int64_t head, int64_t start, int64_t end) {
  Block<uint16_t> block{};
  block.key_stride = h.page_size;
  block.start = start;
  for (int s = 0; s < kBlock / kStrip && start + s * kStrip < end; ++s) {
    const int64_t position = start + s * kStrip, offset = position % h.page_size;
    const uint16_t* page = keys_at(h, cache, pages[position / h.page_size], head);
    block.keys[s] = page + offset;
    block.values[s] = page + h.head_dim * h.page_size + offset * h.head_dim;
  }
  return block;
}

// The same block in float32, converted once for many rows. `out` holds 2 * kBlock * D floats.
inline Block<float> converted(const Heads& h, const Block<uint16_t>& from, int64_t end,
                                   float* out) {
  Block<float> block{};
  block.key_stride = kStrip;
  block.start = from.start;
  for (int s = 0; s < kBlock / kStrip && from.start + s * kStrip < end; ++s) {
    block.keys[s] = out;
    for (int64_t d = 0; d < h.head_dim; ++d, out += kStrip) {
      for (int i = 0; i < kStrip; i += simd::kLanes) {
        simd::store(out + i, simd::load_half(from.keys[s] + d * from.key_stride + i));
      }
    }
    block.values[s] = out;
    for (int64_t i = 0; i < kStrip * h.head_dim; i += simd::kLanes) {
      simd::store(out + i, simd::load_half(from.values[s] + i));
    }
    out += kStrip * h.head_dim;
  }
  return block;
}

// Queries [first, end) of a span with one key/value head and segment; partials by (query, group).
struct Query {
  const Heads* heads;
  const Step* step;
  const uint16_t* cache;
  const float* fused;  // (N, H + 2K, D), turned and scaled
  int64_t head;        // key/value head
  int64_t first;       // rows of the step
  int64_t end;
};

inline void attend_segment(const Query& query, int64_t segment, Partial* parts, float* room) {
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
  const bool is_long = num_rows > 2 * kTile;
  for (int64_t start = begin; start < stop; start += kBlock) {
    const auto halves = block_at(h, query.cache, pages, query.head, start, stop);
    Block<float> floats{};
    if (is_long) floats = converted(h, halves, stop, room);
    for (int64_t tile = 0; tile < num_rows; tile += kTile) {
      const int count = int(std::min<int64_t>(kTile, num_rows - tile));
      const float* q[kTile];
      int32_t at[kTile];
      Partial* rows[kTile];
      for (int r = 0; r < count; ++r) {
        const int64_t row = query.first + (tile + r) / group;
        q[r] = query.fused + row * width + (query.head * group + (tile + r) % group) * dim;
        at[r] = positions[row];
        rows[r] = parts + tile + r;
      }
      if (at[count - 1] < start) continue;
      if (is_long) tile_block_of<float>(count, floats, q, at, rows, dim);
      else tile_block_of<uint16_t>(count, halves, q, at, rows, dim);
    }
  }
}

}  // namespace lw
