// A pool of threads that run one body together, with barriers inside it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "simd.h"

namespace lw {

// Memory that grows and is kept; 64-byte aligned; contents are lost when it grows.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { std::free(block_); }

  void* reserve(size_t num_bytes) {
    if (num_bytes > size_) {
      std::free(block_);
      size_ = 0;
      const size_t rounded = (num_bytes + 4095) / 4096 * 4096;
      block_ = std::aligned_alloc(64, rounded);
      if (block_ == nullptr) throw std::bad_alloc();
      size_ = rounded;
    }
    return block_;
  }

 private:
  void* block_ = nullptr;
  size_t size_ = 0;
};

// How long a waiting thread spins before it yields or sleeps: longer than the pause between two
// blocks of a step, shorter than what an idle engine may burn.
constexpr int kSpins = 4000;

class Pool {
 public:
  static constexpr int kMaxPhases = 32;

  explicit Pool(int num_threads) : num_threads_(num_threads) {
    scratch_ = std::vector<Arena>(num_threads);
    claims_ = std::vector<Claims>(num_threads);
    for (int index = 1; index < num_threads; ++index) {
      workers_.emplace_back([this, index] { work(index); });
    }
  }

  ~Pool() {
    stopping_.store(true);
    wake();
    for (auto& worker : workers_) worker.join();
  }

  int num_threads() const { return num_threads_; }
  Arena& shared() { return shared_; }
  Arena& scratch(int thread) { return scratch_[thread]; }
  std::mutex& entry() { return entry_; }

  // Runs body(thread) on every thread and returns when all are done.
  template <class Body>
  void run(const Body& body) {
    restart(0, kMaxPhases);
    if (num_threads_ == 1) {
      body(0);
      return;
    }
    body_ = [](const void* context, int thread) { (*static_cast<const Body*>(context))(thread); };
    context_ = &body;
    wake();
    body(0);
    barrier();
  }

  // Phases [first, first + count) begin anew; a barrier must lie between this and their next task.
  void restart(int first, int count) {
    for (Claims& claims : claims_) {
      for (int i = first; i < first + count; ++i) {
        claims.next[i].store(0, std::memory_order_relaxed);
      }
    }
  }

  // Runs a phase's tasks, each once. A thread takes its own run of neighbouring tasks first, so that
  // what they read is one stream to its core's prefetchers, and then what others have left.
  template <class Task>
  void share(int thread, int phase, int64_t num_tasks, const Task& task) {
    for (int turn = 0; turn < num_threads_; ++turn) {
      const int owner = (thread + turn) % num_threads_;
      const int64_t first = num_tasks * owner / num_threads_;
      const int64_t count = num_tasks * (owner + 1) / num_threads_ - first;
      std::atomic<int32_t>& next = claims_[owner].next[phase];
      for (int64_t i = claim(next, count); i < count; i = claim(next, count)) task(first + i);
    }
  }

  void barrier() {
    if (num_threads_ == 1) return;
    const uint32_t turn = turn_.value.load(std::memory_order_relaxed);
    if (arrived_.value.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
      arrived_.value.store(0, std::memory_order_relaxed);
      turn_.value.store(turn + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; turn_.value.load(std::memory_order_acquire) == turn; ++spins) {
      if (spins < kSpins) simd::pause();
      else std::this_thread::yield();
    }
  }

 private:
  template <class T>
  struct alignas(128) Line {
    std::atomic<T> value{0};
  };

  // How many tasks of each phase were taken from one thread's run.
  struct alignas(128) Claims {
    std::atomic<int32_t> next[kMaxPhases] = {};
  };

  // Looks before it takes: most visits to another thread's run find it done.
  static int64_t claim(std::atomic<int32_t>& next, int64_t count) {
    if (next.load(std::memory_order_relaxed) >= count) return count;
    return next.fetch_add(1, std::memory_order_relaxed);
  }

  void wake() {
    epoch_.value.fetch_add(1, std::memory_order_seq_cst);
    if (num_asleep_.value.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(sleep_);
      wakened_.notify_all();
    }
  }

  void work(int index) {
    uint32_t seen = 0;
    while (true) {
      for (int spins = 0; epoch_.value.load(std::memory_order_acquire) == seen; ++spins) {
        if (spins < kSpins) {
          simd::pause();
          continue;
        }
        std::unique_lock<std::mutex> lock(sleep_);
        num_asleep_.value.fetch_add(1, std::memory_order_seq_cst);
        wakened_.wait(lock, [&] { return epoch_.value.load(std::memory_order_seq_cst) != seen; });
        num_asleep_.value.fetch_sub(1, std::memory_order_seq_cst);
      }
      ++seen;
      if (stopping_.load()) return;
      body_(context_, index);
      barrier();
    }
  }

  int num_threads_;
  std::vector<std::thread> workers_;
  std::vector<Arena> scratch_;
  Arena shared_;
  std::mutex entry_;
  void (*body_)(const void*, int) = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::mutex sleep_;
  std::condition_variable wakened_;
  Line<int32_t> num_asleep_;
  Line<uint32_t> epoch_;
  Line<uint32_t> turn_;
  Line<int32_t> arrived_;
  std::vector<Claims> claims_;
};

}  // namespace lw
