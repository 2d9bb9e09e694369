// The C interface. Pointers are the caller's; a pool serves one call at a time.
#include <cstdint>

#include "exchange.h"
#include "int8_wire.h"
#include "layers.h"

using namespace lw;

#define LW_EXPORT __attribute__((visibility("default")))

extern "C" {

LW_EXPORT const char* lw_backend() {
#ifdef LW_TILES
  return tiles::are_allowed() ? "avx512-vnni+amx" : "avx512-vnni (the system refuses AMX tiles)";
#else
  return simd::kName;
#endif
}
LW_EXPORT int32_t lw_lanes() { return simd::kLanes; }

// Sizes of the structures, in the order in which the callers' declarations stand.
LW_EXPORT int64_t lw_struct_bytes(int32_t index) {
  const int64_t sizes[] = {sizeof(Weight), sizeof(Norm), sizeof(Heads),
                           sizeof(Step), sizeof(AttentionBlock), sizeof(MlpBlock)};
  return index >= 0 && index < 6 ? sizes[index] : 0;
}

LW_EXPORT void* lw_pool_create(int32_t num_threads) { return new Pool(num_threads); }
LW_EXPORT void lw_pool_destroy(void* pool) { delete static_cast<Pool*>(pool); }

LW_EXPORT int64_t lw_packed_bytes(const Weight* w) { return num_panels(*w) * panel_bytes(*w); }

LW_EXPORT int32_t lw_all_exact_half(const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!is_exact_half(values[i])) return 0;
  }
  return 1;
}

LW_EXPORT void lw_pack(void* handle, const Weight* w, const uint8_t* quants, const float* scales,
             const float* minima) {
  Pool& pool = *static_cast<Pool*>(handle);
  std::lock_guard<std::mutex> lock(pool.entry());
  const Quants from{quants, scales, minima};
  uint8_t* out = const_cast<uint8_t*>(w->data);
  pool.run([&](int thread) {
    pool.share(thread, 0, num_panels(*w), [&](int64_t panel) {
      pack_panel(out + panel * panel_bytes(*w), *w, from, panel);
    });
  });
}

LW_EXPORT void lw_rows(const Weight* w, const int64_t* ids, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) unpack_row(out + i * w->num_columns, *w, ids[i]);
}

// y = norm(x) W^T; without a norm's weight, x W^T.
LW_EXPORT void lw_product(void* handle, const Weight* w, const Norm* norm, const float* x, int64_t num_rows,
                float* y) {
  Pool& pool = *static_cast<Pool*>(handle);
  std::lock_guard<std::mutex> lock(pool.entry());
  const auto a = Activations::in(pool.shared().reserve(Activations::bytes(*w, num_rows)), *w,
                                 num_rows);
  pool.run([&](int thread) {
    share_norm(pool, thread, 0, x, num_rows, *norm, a);
    pool.barrier();
    share_product(pool, thread, 1, *w, a, num_rows, y, w->num_rows, false);
  });
}

LW_EXPORT void lw_mlp_block(void* handle, const MlpBlock* block, float* x, int64_t num_rows) {
  Pool& pool = *static_cast<Pool*>(handle);
  std::lock_guard<std::mutex> lock(pool.entry());
  void* memory = pool.shared().reserve(mlp_room(*block, num_rows, nullptr).num_bytes);
  pool.run([&](int thread) {
    share_mlp_block(pool, thread, 0, *block, mlp_room(*block, num_rows, memory), num_rows, x);
  });
}

LW_EXPORT void lw_attention_block(void* handle, const AttentionBlock* block, const Step* step,
                                  int16_t* cache, float* x) {
  Pool& pool = *static_cast<Pool*>(handle);
  std::lock_guard<std::mutex> lock(pool.entry());
  void* memory = pool.shared().reserve(attention_room(*block, *step, nullptr).num_bytes);
  pool.run([&](int thread) {
    const auto room = attention_room(*block, *step, memory);
    share_attention_block(pool, thread, 0, *block, *step, cache, room, x);
  });
}

// Whole layers one after the other, each an attention block and an MLP block.
LW_EXPORT void lw_decoder_stack(void* handle, const AttentionBlock* const* attention,
                                const MlpBlock* const* mlp, int64_t num_layers, const Step* step,
                                int16_t* const* caches, float* x) {
  Pool& pool = *static_cast<Pool*>(handle);
  std::lock_guard<std::mutex> lock(pool.entry());
  const int64_t num_rows = step->num_rows;
  size_t num_bytes = 0;
  for (int64_t i = 0; i < num_layers; ++i) {
    num_bytes = std::max(num_bytes, attention_room(*attention[i], *step, nullptr).num_bytes);
    num_bytes = std::max(num_bytes, mlp_room(*mlp[i], num_rows, nullptr).num_bytes);
  }
  void* memory = pool.shared().reserve(num_bytes);
  pool.run([&](int thread) {
    for (int64_t i = 0; i < num_layers; ++i) {
      // Layers take turns with two sets of phases: while one is in use, the other is begun anew.
      const int first = i % 2 * kLayerPhases;
      if (i > 0) pool.barrier();
      const auto room = attention_room(*attention[i], *step, memory);
      share_attention_block(pool, thread, first, *attention[i], *step, caches[i], room, x);
      // All threads have left the layer before, and none can enter the next one yet.
      if (thread == 0) pool.restart(kLayerPhases - first, kLayerPhases);
      pool.barrier();
      share_mlp_block(pool, thread, first + kAttentionPhases, *mlp[i],
                      mlp_room(*mlp[i], num_rows, memory), num_rows, x);
    }
  });
}

// Turn, store and attend for a fused product (N, H + 2K, D), which is changed; out (N, H, D).
LW_EXPORT void lw_attend(void* handle, const Heads* heads, const Step* step, int16_t* cache, float* fused,
               float* out) {
  Pool& pool = *static_cast<Pool*>(handle);
  std::lock_guard<std::mutex> lock(pool.entry());
  const AttentionTasks tasks(*heads, *step);
  float* parts = static_cast<float*>(
      pool.shared().reserve(4 * tasks.num_parts() * part_floats(*heads) + 64));
  const AttentionCall call{*heads, *step, cache, fused, {out, nullptr}};
  pool.run([&](int thread) { share_attention(pool, thread, 0, call, parts); });
}

// The sum of all parts in their order, rounded once, to `out` and, unless it is null, to `copy`.
LW_EXPORT void lw_add_in_order(int32_t kind, const void* const* parts, int32_t num_parts,
                               int64_t count, void* out, void* copy) {
  wire::add_in_order(wire::Kind(kind), parts, num_parts, count, out, copy);
}

LW_EXPORT void lw_int8_encode(int32_t kind, const void* x, int64_t count, uint8_t* out) {
  wire::encode(wire::Kind(kind), x, count, out);
}

LW_EXPORT void lw_int8_decode(int32_t kind, const uint8_t* blocks, int64_t count, void* out) {
  wire::decode(wire::Kind(kind), blocks, count, out);
}

LW_EXPORT void lw_int8_settle(int32_t kind, void* x, int64_t count, const uint8_t* const* payloads,
                              int32_t num_ranks, int32_t own, uint8_t* out) {
  wire::settle(wire::Kind(kind), x, count, {payloads, num_ranks, own}, out);
}

}  // extern "C"
