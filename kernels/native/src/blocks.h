// The parts of a decoder layer as tasks of a pool: what a block shares between two barriers.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attention.h"
#include "gemm.h"
#include "pool.h"

namespace lw {

constexpr int64_t kRowBlock = 128;   // rows of one task of a product
constexpr int64_t kTaskColumns = 32;  // columns of one task, a whole group of what reads them

struct Norm {
  const float* weight;  // (C)
  float eps;
};

inline void rms_norm(const float* x, const Norm& norm, int64_t width, float* out) {
  using namespace simd;
  Floats sum = zero();
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) sum = fma(load(x + i), load(x + i), sum);
  float total = reduce_add(sum);
  for (; i < width; ++i) total += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(total / float(width) + norm.eps);
  for (i = 0; i + kLanes <= width; i += kLanes) {
    store(out + i, mul(mul(load(x + i), set1(factor)), load(norm.weight + i)));
  }
  for (; i < width; ++i) out[i] = x[i] * factor * norm.weight[i];
}

inline float silu(float x) { return x / (1.0f + std::exp(-x)); }

// silu(gate) * up by lanes.
inline simd::Floats gated(simd::Floats gate, simd::Floats up) {
  using namespace simd;
  const Floats decay = exp2(mul(gate, set1(-1.44269504f)));
  return mul(div(gate, add(set1(1.0f), decay)), up);
}

// Room of one thread for a product's task.
struct TaskRoom {
  float* tiles;    // (2, kRowBlock, kLanes)
  float* columns;  // (kRowBlock, kTaskColumns)
  uint8_t* bytes;

  static size_t bytes_of(const Weight& w) {
    return 4 * (2 * kRowBlock * simd::kLanes + kRowBlock * kTaskColumns) + unpacked_bytes(w) + 64;
  }
  static TaskRoom in(void* memory) {
    TaskRoom room;
    room.tiles = static_cast<float*>(memory);
    room.columns = room.tiles + 2 * kRowBlock * simd::kLanes;
    room.bytes = reinterpret_cast<uint8_t*>(room.columns + kRowBlock * kTaskColumns);
    return room;
  }
};

inline int64_t num_row_blocks(int64_t num_rows) { return (num_rows + kRowBlock - 1) / kRowBlock; }
inline int64_t num_column_tasks(int64_t num_columns) {
  return (num_columns + kTaskColumns - 1) / kTaskColumns;
}

// Tasks of y = x W^T (+ y where `adds`): every thread calls it.
inline void share_product(Pool& pool, int thread, int phase, const Weight& w, const Activations& a,
                          int64_t num_rows, float* y, int64_t stride, bool adds) {
  const TaskRoom room = TaskRoom::in(pool.scratch(thread).reserve(TaskRoom::bytes_of(w)));
  const TileScope scope(w, num_rows);
  const int64_t column_tasks = num_column_tasks(w.num_rows);
  pool.share(thread, phase, column_tasks * num_row_blocks(num_rows), [&](int64_t task) {
    const int64_t first = task / column_tasks * kRowBlock;
    const int64_t end = std::min(first + kRowBlock, num_rows);
    const int64_t start = task % column_tasks * kTaskColumns;
    const int64_t stop = std::min(start + kTaskColumns, w.num_rows);
    for (int64_t column = start; column < stop; column += simd::kLanes) {
      multiply_panel(w, a, column / simd::kLanes, first, end, room.bytes, room.tiles);
      const int64_t count = std::min<int64_t>(simd::kLanes, stop - column);
      for (int64_t m = first; m < end; ++m) {
        const float* tile = room.tiles + (m - first) * simd::kLanes;
        float* out = y + m * stride + column;
        if (count == simd::kLanes) {
          const simd::Floats value = simd::load(tile);
          simd::store(out, adds ? simd::add(simd::load(out), value) : value);
        } else {
          for (int64_t i = 0; i < count; ++i) out[i] = adds ? out[i] + tile[i] : tile[i];
        }
      }
    }
  });
}

// Tasks of silu(gate) * up, quantised for the map that follows.
inline void share_gated(Pool& pool, int thread, int phase, const Weight& w, const Activations& a,
                        int64_t num_rows, const Activations& out) {
  const TaskRoom room = TaskRoom::in(pool.scratch(thread).reserve(TaskRoom::bytes_of(w)));
  const TileScope scope(w, num_rows);
  const int64_t inner = w.num_rows / 2, column_tasks = num_column_tasks(inner);
  float* gates = room.tiles;
  float* ups = room.tiles + kRowBlock * simd::kLanes;
  pool.share(thread, phase, column_tasks * num_row_blocks(num_rows), [&](int64_t task) {
    const int64_t first = task / column_tasks * kRowBlock;
    const int64_t end = std::min(first + kRowBlock, num_rows);
    const int64_t start = task % column_tasks * kTaskColumns;
    const int64_t stop = std::min(start + kTaskColumns, inner);
    for (int64_t column = start; column < stop; column += simd::kLanes) {
      multiply_panel(w, a, column / simd::kLanes, first, end, room.bytes, gates);
      multiply_panel(w, a, (inner + column) / simd::kLanes, first, end, room.bytes, ups);
      for (int64_t m = 0; m < end - first; ++m) {
        const simd::Floats y = gated(simd::load(gates + m * simd::kLanes),
                                     simd::load(ups + m * simd::kLanes));
        simd::store(room.columns + m * kTaskColumns + column - start, y);
      }
    }
    for (int64_t m = first; m < end; ++m) {
      quantise(out, m, room.columns + (m - first) * kTaskColumns, start, stop - start);
    }
  });
}

// Tasks of norm and quantisation, one row each.
inline void share_norm(Pool& pool, int thread, int phase, const float* x, int64_t num_rows,
                       const Norm& norm, const Activations& out) {
  const int64_t width = out.num_columns;
  float* row = static_cast<float*>(pool.scratch(thread).reserve(4 * width));
  pool.share(thread, phase, num_rows, [&](int64_t m) {
    if (norm.weight == nullptr) {
      quantise(out, m, x + m * width, 0, width);
      return;
    }
    rms_norm(x + m * width, norm, width, row);
    quantise(out, m, row, 0, width);
  });
}

// Where the attention of a step's rows goes: float32 (N, H * D), or quantised for the next map.
struct AttentionOut {
  float* floats;
  const Activations* quantised;
};

inline void finish_row(const Heads& h, const Partial& total, int64_t row, int64_t head,
                       const AttentionOut& out, float* room) {
  using namespace simd;
  const int64_t dim = h.head_dim;
  const Floats factor = set1(1.0f / total.sum);
  float* to = out.floats != nullptr ? out.floats + (row * h.num_heads + head) * dim : room;
  for (int64_t d = 0; d < dim; d += kLanes) store(to + d, mul(load(total.acc + d), factor));
  if (out.quantised != nullptr) quantise(*out.quantised, row, to, head * dim, dim);
}

// One unit of attention: rows of a span with one key/value head, all segments or one of them.
struct Unit {
  int64_t first, end, head;
  int64_t segment;  // -1: all
};

// How a step's attention is cut: spans of few rows by segment, longer ones by queries.
class AttentionTasks {
 public:
  AttentionTasks(const Heads& heads, const Step& step) : heads_(heads), step_(step) {
    for (int64_t span = 0; span < step.num_spans; ++span) {
      num_units_ += units_of(span);
      if (!is_long(span)) num_parts_ += parts_of(span);
    }
  }

  bool is_long(int64_t span) const { return rows_of(span) > kTile; }
  int64_t rows_of(int64_t span) const { return step_.span_row[span + 1] - step_.span_row[span]; }
  int64_t segments_of(int64_t span) const {
    return step_.positions[step_.span_row[span + 1] - 1] / kSegment + 1;
  }
  int64_t units_of(int64_t span) const {
    const int64_t cuts = is_long(span) ? (rows_of(span) + kLongQueries - 1) / kLongQueries
                                       : segments_of(span);
    return cuts * heads_.num_kv_heads;
  }
  // Partials of a short span: by segment, key/value head, row, query head of the group.
  int64_t parts_of(int64_t span) const {
    return segments_of(span) * rows_of(span) * heads_.num_heads;
  }
  int64_t num_units() const { return num_units_; }
  int64_t num_parts() const { return num_parts_; }

  // The unit of a number, its span, and where a short span's partials begin.
  Unit unit(int64_t number, int64_t* span, int64_t* parts) const {
    *parts = 0;
    for (*span = 0; number >= units_of(*span); ++*span) {
      number -= units_of(*span);
      if (!is_long(*span)) *parts += parts_of(*span);
    }
    const int64_t cut = number / heads_.num_kv_heads, head = number % heads_.num_kv_heads;
    const int64_t begin = step_.span_row[*span], stop = step_.span_row[*span + 1];
    if (!is_long(*span)) return {begin, stop, head, cut};
    // The last queries see the most keys: they come first.
    const int64_t cuts = units_of(*span) / heads_.num_kv_heads;
    const int64_t first = begin + (cuts - 1 - cut) * kLongQueries;
    return {first, std::min(first + kLongQueries, stop), head, -1};
  }

 private:
  const Heads& heads_;
  const Step& step_;
  int64_t num_units_ = 0;
  int64_t num_parts_ = 0;
};

// Memory of a partial: its two numbers, then its values.
inline int64_t part_floats(const Heads& h) { return h.head_dim + 16; }
inline Partial part_at(float* memory, const Heads& h, int64_t index) {
  return {0.0f, 0.0f, memory + index * part_floats(h) + 16};
}

struct AttentionCall {
  const Heads& heads;
  const Step& step;
  int16_t* cache;
  float* fused;
  AttentionOut out;
};

inline void attend_long(const AttentionCall& call, const Unit& unit, float* room) {
  const Heads& h = call.heads;
  const int64_t group = h.num_heads / h.num_kv_heads, dim = h.head_dim;
  constexpr int64_t kMost = kLongQueries;
  const int64_t num_rows = (unit.end - unit.first) * group;
  float* totals_at = room;
  float* parts_at = totals_at + kMost * group * part_floats(h);
  float* row_room = parts_at + kMost * group * part_floats(h);
  Partial* totals = reinterpret_cast<Partial*>(row_room + dim);
  Partial* parts = totals + kMost * group;
  for (int64_t r = 0; r < num_rows; ++r) {
    totals[r] = part_at(totals_at, h, r);
    parts[r] = part_at(parts_at, h, r);
  }
  const Query query{&h, &call.step, call.cache, call.fused, unit.head, unit.first, unit.end};
  const TileAttention in_tiles(query, parts + kMost * group);
  const int64_t segments = call.step.positions[unit.end - 1] / kSegment + 1;
  for (int64_t segment = 0; segment < segments; ++segment) {
    attend_segment(query, segment, in_tiles.room(), segment == 0 ? totals : parts);
    if (segment == 0) continue;
    for (int64_t r = 0; r < num_rows; ++r) {
      if (parts[r].sum > 0.0f) merge(totals[r], parts[r], dim);
    }
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    finish_row(h, totals[r], unit.first + r / group, unit.head * group + r % group, call.out,
               row_room);
  }
}

inline size_t attend_room_bytes(const Heads& h) {
  const int64_t group = h.num_heads / h.num_kv_heads;
  const int64_t floats = h.head_dim + 2 * kLongQueries * group * part_floats(h);
  return 4 * floats + 2 * kLongQueries * group * sizeof(Partial) +
         TileRoom::bytes(h.head_dim, kLongQueries * group) + 256;
}

inline void attend_short(const AttentionCall& call, const Unit& unit, float* parts_at) {
  const Heads& h = call.heads;
  const int64_t group = h.num_heads / h.num_kv_heads, num_rows = (unit.end - unit.first) * group;
  Partial parts[kTile * 64];
  float* mine = parts_at +
                (unit.segment * h.num_kv_heads + unit.head) * num_rows * part_floats(h);
  for (int64_t r = 0; r < num_rows; ++r) parts[r] = part_at(mine, h, r);
  const Query query{&h, &call.step, call.cache, call.fused, unit.head, unit.first, unit.end};
  attend_segment(query, unit.segment, nullptr, parts);
  for (int64_t r = 0; r < num_rows; ++r) {
    mine[r * part_floats(h)] = parts[r].largest;
    mine[r * part_floats(h) + 1] = parts[r].sum;
  }
}

// Merges the segments of one row and head of a short span.
inline void merge_short(const AttentionCall& call, const AttentionTasks& tasks, int64_t span,
                        int64_t row, int64_t head, float* parts_at, float* room) {
  const Heads& h = call.heads;
  const int64_t group = h.num_heads / h.num_kv_heads, rows = tasks.rows_of(span);
  const int64_t kv_head = head / group;
  const int64_t within = (row - call.step.span_row[span]) * group + head % group;
  Partial total{};
  for (int64_t segment = 0; segment < tasks.segments_of(span); ++segment) {
    const int64_t index = (segment * h.num_kv_heads + kv_head) * rows * group + within;
    Partial part = part_at(parts_at, h, index);
    part.largest = part.acc[-16];
    part.sum = part.acc[-15];
    if (segment == 0) total = part;
    else if (part.sum > 0.0f) merge(total, part, h.head_dim);
  }
  finish_row(h, total, row, head, call.out, room);
}

// Turn, store, attend: phases [phase, phase + 3), a barrier before each but the first.
inline void share_attention(Pool& pool, int thread, int phase, const AttentionCall& call,
                            float* parts_at) {
  const Heads& h = call.heads;
  const int64_t heads = h.num_heads + 2 * h.num_kv_heads;
  const int64_t num_rows = call.step.num_rows;
  pool.share(thread, phase, num_rows, [&](int64_t row) {
    for (int64_t i = 0; i < heads; ++i) place_head(h, call.step, call.cache, call.fused, row, i);
  });
  const AttentionTasks tasks(h, call.step);
  float* room = static_cast<float*>(pool.scratch(thread).reserve(attend_room_bytes(h)));
  pool.barrier();
  pool.share(thread, phase + 1, tasks.num_units(), [&](int64_t number) {
    int64_t span, parts;
    const Unit unit = tasks.unit(number, &span, &parts);
    if (unit.segment < 0) attend_long(call, unit, room);
    else attend_short(call, unit, parts_at + parts * part_floats(h));
  });
  if (tasks.num_parts() == 0) return;
  pool.barrier();
  pool.share(thread, phase + 2, call.step.num_spans, [&](int64_t span) {
    if (tasks.is_long(span)) return;
    int64_t before = 0;
    for (int64_t s = 0; s < span; ++s) before += tasks.is_long(s) ? 0 : tasks.parts_of(s);
    for (int64_t row = call.step.span_row[span]; row < call.step.span_row[span + 1]; ++row) {
      for (int64_t head = 0; head < h.num_heads; ++head) {
        merge_short(call, tasks, span, row, head, parts_at + before * part_floats(h), room);
      }
    }
  });
}

}  // namespace lw
