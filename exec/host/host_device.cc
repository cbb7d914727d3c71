// SPDX-License-Identifier: Apache-2.0
#include "exec/host/host_device.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>
#include <vector>

#include "exec/host_memory.h"
#include "exec/typed.h"
#include "kernels/host/activation.h"
#include "kernels/host/attention.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/embedding.h"
#include "kernels/host/loss.h"
#include "kernels/host/matmul.h"
#include "kernels/host/norm.h"
#include "kernels/host/optimizer.h"
#include "kernels/host/rope.h"
#include "kernels/host/simd/kernels.h"
#include "sim/core/arena.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/units.h"

namespace shardwright::exec {

std::uint64_t HostEvent::issue() {
  const std::lock_guard lock(mutex_);
  open_.push_back(++issued_);
  return issued_;
}

bool HostEvent::is_complete(std::uint64_t number) const {
  return std::find(open_.begin(), open_.end(), number) == open_.end();
}

void HostEvent::complete(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  std::erase(open_, number);
  // Under the lock, because a waiter may destroy the event as soon as it knows.
  changed_.notify_all();
}

bool HostEvent::has_passed() const {
  const std::lock_guard lock(mutex_);
  return is_complete(issued_);
}

void HostEvent::await(std::uint64_t number) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_complete(number); });
}

HostStream::HostStream(std::string name, Failure& failure, const kernels::RandomStream* delays)
    : name_(std::move(name)), failure_(failure), delays_(delays != nullptr) {
  if (delays != nullptr) random_ = *delays;
  thread_ = std::thread([this] { work(); });
}

HostStream::~HostStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void HostStream::push(std::function<void()> task, std::int64_t operation) {
  enqueue({std::move(task), false, operation});
}

void HostStream::push_always(std::function<void()> task) {
  enqueue({std::move(task), true, -1});
}

void HostStream::enqueue(Task task) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void HostStream::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
}

void HostStream::pause() {
  const std::uint32_t draw = random_.word(tasks_done_++);
  // Mostly none, sometimes long enough for another stream to run ahead by many tasks.
  const std::uint32_t microseconds = draw % 4 == 0 ? (draw >> 8) % 200 : 0;
  if (microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

void HostStream::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    if (delays_) pause();
    if (task.always || !failure_.failed()) {
      try {
        task.run();
      } catch (...) {
        failure_.keep(std::current_exception(), task.operation);
      }
    }
    task.run = nullptr;
    lock.lock();
    busy_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}

namespace {

/// Of the processor that this thread has used.
Nanoseconds processor_time_ns() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<Nanoseconds>(used.tv_sec) * 1'000'000'000 + used.tv_nsec;
}

}  // namespace

void StreamClocks::Processors::acquire() {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [this] { return free_ > 0; });
  --free_;
}

void StreamClocks::Processors::release() {
  {
    const std::lock_guard lock(mutex_);
    ++free_;
  }
  released_.notify_one();
}

Nanoseconds StreamClocks::latest() const {
  Nanoseconds latest = 0;
  for (const Nanoseconds now : now_ns_) latest = std::max(latest, now);
  return latest;
}

void StreamClocks::wait_until(StreamId stream, Nanoseconds at) {
  Nanoseconds& now = now_ns_[index(stream)];
  now = std::max(now, at);
}

void StreamClocks::wait_for_all(Nanoseconds at) {
  std::fill(now_ns_.begin(), now_ns_.end(), std::max(at, latest()));
}

Nanoseconds StreamClocks::end_of_operation(StreamId stream) const {
  return now(stream) + said_ns_.value_or(0);
}

StreamClocks::Timer::Timer(StreamClocks& clocks, StreamId stream)
    : clocks_(clocks), stream_(stream) {
  clocks_.processors_.acquire();
  begin_ns_ = processor_time_ns();
}

StreamClocks::Timer::~Timer() {
  clocks_.now_ns_[index(stream_)] += processor_time_ns() - begin_ns_;
  clocks_.processors_.release();
}

StreamClocks::Said::Said(StreamClocks* clocks, StreamId stream, std::optional<Nanoseconds> lasts)
    : clocks_(lasts ? clocks : nullptr), stream_(stream), lasts_(lasts.value_or(0)) {
  if (clocks_ == nullptr) return;
  SHARDWRIGHT_CHECK(!clocks_->said_ns_, "an operation of stream {} within another one", stream);
  clocks_->said_ns_ = lasts_;
}

StreamClocks::Said::~Said() {
  if (clocks_ == nullptr) return;
  clocks_->said_ns_.reset();
  clocks_->now_ns_[index(stream_)] += lasts_;
}

std::string_view name_of(StreamMode mode) {
  switch (mode) {
    case StreamMode::kInline:
      return "inline";
    case StreamMode::kThreads:
      return "threads";
    case StreamMode::kShuffled:
      return "shuffled";
  }
  return "?";
}

StreamMode stream_mode_from(std::string_view name) {
  for (const StreamMode mode : {StreamMode::kInline, StreamMode::kThreads, StreamMode::kShuffled}) {
    if (name == name_of(mode)) return mode;
  }
  throw Error(fmt::format("streams is '{}', expected threads, inline or shuffled", name));
}

class HostDevice::HostAllocation final : public Allocation {
 public:
  HostAllocation(HostDevice& device, const Allocator& allocator, Bytes bytes)
      : device_(device),
        bytes_(bytes),
        give_back_(allocator.give_back),
        data_(allocator.make(bytes)) {
    const Bytes now = device_.allocated_.fetch_add(bytes) + bytes;
    Bytes peak = device_.peak_.load();
    while (peak < now && !device_.peak_.compare_exchange_weak(peak, now)) {
    }
  }
  ~HostAllocation() override {
    give_back_(data_);
    device_.allocated_.fetch_sub(bytes_);
  }
  void* data() const override { return data_; }

 private:
  HostDevice& device_;
  Bytes bytes_;
  std::function<void(void*)> give_back_;
  void* data_;
};

namespace {

Allocator aligned_memory() {
  constexpr std::align_val_t kAlignment{kArenaAlignment};
  return {[](Bytes bytes) { return ::operator new(static_cast<std::size_t>(bytes), kAlignment); },
          [](void* data) { ::operator delete(data, kAlignment); }};
}

/// Ranks of virtual clocks may have more in all than the machine; what none touches costs nothing.
Allocator reserved_memory(Bytes bytes) {
  const auto length = static_cast<std::size_t>(std::max<Bytes>(bytes, 1));
  return {[length](Bytes) {
            void* data = ::mmap(nullptr, length, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (data == MAP_FAILED) throw std::bad_alloc();
            return data;
          },
          [length](void* data) { ::munmap(data, length); }};
}

}  // namespace

HostDevice::HostDevice(kernels::host::Parallel& parallel, StreamMode mode,
                       std::uint64_t shuffle_seed)
    : parallel_(parallel), mode_(mode), shuffle_seed_(shuffle_seed) {}

HostDevice::HostDevice(kernels::host::Parallel& parallel, StreamClocks::Processors& processors)
    : parallel_(parallel), mode_(StreamMode::kInline) {
  SHARDWRIGHT_CHECK(parallel.threads() == 1, "clocks of {} threads", parallel.threads());
  clocks_.emplace(processors);
}

HostDevice::~HostDevice() {
  HostDevice::drain();
}

std::unique_ptr<Allocation> HostDevice::allocate(Bytes bytes) {
  try {
    return allocate_by(clocks_ ? reserved_memory(bytes) : aligned_memory(), bytes);
  } catch (const std::bad_alloc&) {
    throw Error(
        fmt::format("the plan needs {} bytes of memory at once and the machine refuses them",
                    bytes),
        ExitCode::kFailed);
  }
}

std::unique_ptr<Allocation> HostDevice::allocate_by(const Allocator& allocator, Bytes bytes) {
  return std::make_unique<HostAllocation>(*this, allocator, bytes);
}

std::unique_ptr<Allocation> HostDevice::allocate_host(Bytes bytes) {
  return pageable_memory(bytes);
}

StreamId HostDevice::make_stream(const char* name, int) {
  const auto id = static_cast<StreamId>(streams_.size());
  if (mode_ == StreamMode::kInline) {
    streams_.push_back(nullptr);
    if (clocks_) clocks_->add_stream();
    return id;
  }
  const kernels::RandomStream delays{shuffle_seed_, kernels::RandomSite::kDelay,
                                     static_cast<std::uint32_t>(id)};
  streams_.push_back(std::make_unique<HostStream>(
      name, failure_, mode_ == StreamMode::kShuffled ? &delays : nullptr));
  return id;
}

std::unique_ptr<Event> HostDevice::make_event() {
  return std::make_unique<HostEvent>();
}

void HostDevice::record(StreamId stream, Event& event) {
  auto& mine = static_cast<HostEvent&>(event);
  if (clocks_) mine.at_ns = clocks_->now(stream);
  if (mode_ == StreamMode::kInline) return;
  streams_[static_cast<std::size_t>(stream)]->push_always(
      [&mine, number = mine.issue()] { mine.complete(number); });
}

void HostDevice::wait(StreamId stream, const Event& event) {
  const auto& theirs = static_cast<const HostEvent&>(event);
  if (clocks_) clocks_->wait_until(stream, theirs.at_ns);
  if (mode_ == StreamMode::kInline) return;
  if (theirs.issued() == 0) return;
  streams_[static_cast<std::size_t>(stream)]->push_always(
      [&theirs, number = theirs.issued()] { theirs.await(number); });
}

void HostDevice::synchronize() {
  drain();
  if (clocks_) clocks_->wait_for_all();
  failure_.rethrow();
}

void HostDevice::drain() noexcept {
  // A stream may wait for another one of this device but gets no new work meanwhile, so one round
  // is enough.
  for (const auto& stream : streams_) {
    if (stream) stream->drain();
  }
}

void HostDevice::timestamp(StreamId stream, Nanoseconds* at) {
  if (clocks_) {
    *at = clocks_->now(stream);
    return;
  }
  enqueue(stream, [at] {
    *at = std::chrono::duration_cast<std::chrono::nanoseconds>(
              std::chrono::steady_clock::now().time_since_epoch())
              .count();
  });
}

void HostDevice::call(StreamId stream, std::function<void()> function) {
  if (!clocks_) return enqueue(stream, std::move(function));
  // It takes no time: it may wait for another rank, which needs a processor meanwhile.
  run_now(function);
}

// Copies, sums and the update: operations on flat arrays.

namespace host = kernels::host;
using kernels::BFloat16;

namespace {

constexpr std::int64_t kGrain = 16384;  // elements of one task

template <class In, class Out>
void fold_range(const host::Kernels& kernels, const std::vector<const void*>& inputs, Out* out,
                bool adds, std::int64_t begin, std::int64_t count, host::Scratch& scratch) {
  float* sum = scratch.floats(count);
  std::size_t next = 0;
  if (adds) {
    kernels.of<Out>().widen(out + begin, sum, count);
  } else {
    kernels.of<In>().widen(static_cast<const In*>(inputs[next++]) + begin, sum, count);
  }
  for (; next < inputs.size(); ++next) {
    kernels.of<In>().accumulate(static_cast<const In*>(inputs[next]) + begin, sum, count);
  }
  kernels.of<Out>().narrow(sum, out + begin, count);
}

}  // namespace

void fold_now(host::Parallel& parallel, const std::vector<const void*>& inputs, DType input_dtype,
              const Array& out, bool adds, SumOrder order) {
  with_types({input_dtype, out.dtype}, [&]<class In, class Out>() {
    if (order == SumOrder::kTree) {
      return host::fold_tree<In, Out>(parallel, inputs, span_of<Out>(out), adds);
    }
    parallel.for_ranges(
        out.size, kGrain, [&](std::int64_t begin, std::int64_t end, host::Scratch& scratch) {
          fold_range<In, Out>(parallel.kernels(), inputs, static_cast<Out*>(out.data), adds, begin,
                              end - begin, scratch);
        });
  });
}

void HostDevice::copy(StreamId stream, void* to, const void* from, Bytes bytes) {
  if (bytes == 0) return;
  enqueue(stream, [=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
}

void HostDevice::copy_rows(StreamId stream, Matrix from, Matrix to) {
  enqueue(stream, [=] {
    const auto bytes = static_cast<std::size_t>(from.cols * bytes_of(from.dtype));
    for (std::int64_t row = 0; row < from.rows; ++row) {
      std::memcpy(to.row_range(row, 1).data, from.row_range(row, 1).data, bytes);
    }
  });
}

void HostDevice::zero(StreamId stream, void* data, Bytes bytes) {
  enqueue(stream, [=] { std::memset(data, 0, static_cast<std::size_t>(bytes)); });
}

void HostDevice::poison(StreamId stream, void* data, Bytes bytes, DType dtype) {
  enqueue(stream, [=] {
    if (dtype == DType::kFp32) {
      std::fill_n(static_cast<std::uint32_t*>(data), bytes / 4, 0x7fa00001u);
    } else {
      std::fill_n(static_cast<std::uint16_t*>(data), bytes / 2, std::uint16_t{0x7fa1});
    }
  });
}

void HostDevice::cast(StreamId stream, Array from, Array to) {
  enqueue(stream, [=, this] {
    with_types({from.dtype, to.dtype}, [&]<class F, class T>() {
      host::cast<F, T>(parallel_, span_of<const F>(from), span_of<T>(to));
    });
  });
}

void HostDevice::accumulate(StreamId stream, Array in, Array sum) {
  enqueue(stream, [=, this] {
    with_types({in.dtype, sum.dtype}, [&]<class I, class S>() {
      host::accumulate<I, S>(parallel_, span_of<const I>(in), span_of<S>(sum));
    });
  });
}

void HostDevice::fold(StreamId stream, std::span<const void* const> inputs, DType input_dtype,
                      Array out, bool adds, SumOrder order) {
  enqueue(stream, [=, this, list = std::vector<const void*>(inputs.begin(), inputs.end())] {
    fold_now(parallel_, list, input_dtype, out, adds, order);
  });
}

void HostDevice::sum_of_squares(StreamId stream, Array x, std::int64_t* words) {
  enqueue(stream, [=, this] {
    with_types({x.dtype}, [&]<class T>() {
      const auto sum = host::sum_of_squares<T>(parallel_, span_of<const T>(x)).words();
      for (std::size_t i = 0; i < sum.size(); ++i) words[i] += sum[i];
    });
  });
}

void HostDevice::finish_gradients(StreamId stream, const StepRecords& records,
                                  const ClipOptions& options, StepTotals* totals) {
  enqueue(stream, [=] { *totals = total(records, options); });
}

void HostDevice::adamw(StreamId stream, const kernels::AdamW& options, const StepTotals* totals,
                       std::span<const UpdateSegment> segments, Array gradient, Array parameter,
                       Array first_moment, Array second_moment) {
  enqueue(stream, [=, this] {
    if (!std::isfinite(totals->scale)) return;
    kernels::AdamW decaying = options;
    decaying.grad_scale = totals->scale;
    kernels::AdamW plain = decaying;
    plain.weight_decay = 0;
    with_types({parameter.dtype, gradient.dtype, first_moment.dtype},
               [&]<class P, class G, class M>() {
                 for (const UpdateSegment& s : segments) {
                   host::adamw<P, G, M>(parallel_, s.decays ? decaying : plain, s.indices(),
                                        span_of<const G>(gradient.part(s.offset, s.count)),
                                        span_of<P>(parameter.part(s.offset, s.count)),
                                        span_of<M>(first_moment.part(s.offset, s.count)),
                                        span_of<M>(second_moment.part(s.offset, s.count)));
                 }
               });
  });
}

// The operations of a transformer, handed to the kernels in kernels/host.

namespace host = kernels::host;
using kernels::BFloat16;

namespace {

host::Store store(bool adds) {
  return adds ? host::Store::kAdd : host::Store::kOverwrite;
}

std::span<const std::int32_t> tokens_of(const std::int32_t* tokens, std::int64_t count) {
  return {tokens, static_cast<std::size_t>(count)};
}

/// The query, key and value heads inside a packed matrix, as pointers with one stride.
template <class T>
struct Packed {
  T *q, *k, *v;
  host::AttentionLayout layout;

  Packed(const PackedHeads& heads, std::int64_t out_stride) {
    const kernels::AttentionShape& s = heads.shape;
    q = static_cast<T*>(heads.packed.data);
    k = q + s.heads * s.head_dim;
    v = k + s.kv_heads * s.head_dim;
    layout = {heads.packed.stride, heads.packed.stride, out_stride};
  }
};

}  // namespace

void HostDevice::embedding_forward(StreamId stream, Matrix table, std::int64_t first_row,
                                   const std::int32_t* tokens, double scale, bool adds,
                                   Matrix out) {
  enqueue(stream, [=, this] {
    with_types({table.dtype}, [&]<class T>() {
      host::embedding_forward<T>(parallel_, matrix_of<const T>(table), tokens_of(tokens, out.rows),
                                 matrix_of<T>(out), scale, store(adds), first_row);
    });
  });
}

void HostDevice::embedding_backward(StreamId stream, const std::int32_t* tokens, Matrix d_out,
                                    double scale, bool adds, Matrix d_table, std::int64_t first_row,
                                    void* scratch) {
  enqueue(stream, [=, this] {
    const std::int64_t ints = kernels::embedding_workspace_ints(d_out.rows, d_table.rows);
    const std::span<std::int32_t> workspace(static_cast<std::int32_t*>(scratch),
                                            static_cast<std::size_t>(ints));
    with_types({d_out.dtype, d_table.dtype}, [&]<class T, class G>() {
      host::embedding_backward<T, G>(parallel_, tokens_of(tokens, d_out.rows),
                                     matrix_of<const T>(d_out), matrix_of<G>(d_table), store(adds),
                                     workspace, scale, first_row);
    });
  });
}

void HostDevice::norm_forward(StreamId stream, Heads x, const Norm& norm, Heads y,
                              float* statistics) {
  enqueue(stream, [=, this] {
    with_types({x.dtype}, [&]<class T>() {
      host::norm_forward<T>(parallel_, norm_of<T>(x, norm, y, statistics));
    });
  });
}

void HostDevice::norm_backward(StreamId stream, Heads x, const Norm& norm, const float* statistics,
                               Heads d_y, const void* d_residual, Heads d_x, Array d_weight,
                               bool adds, float* scratch) {
  enqueue(stream, [=, this] {
    with_types({x.dtype, d_weight.dtype}, [&]<class T, class G>() {
      host::norm_backward<T, G>(parallel_,
                                norm_gradient_of<T>(x, norm, statistics, d_y, d_residual, d_x),
                                pointer<G>(d_weight.data), scratch, store(adds));
    });
  });
}

void HostDevice::linear_forward(StreamId stream, Matrix x, Matrix w, const Addends& addends,
                                Matrix y) {
  const bool adds = addends.matrix.data != nullptr;
  if (adds && addends.matrix.data != y.data) copy_rows(stream, addends.matrix, y);
  enqueue(stream, [=, this, bias = addends.bias] {
    with_types({x.dtype, y.dtype}, [&]<class T, class R>() {
      host::matmul<T, T, R>(parallel_, host::Layout::kNT, matrix_of<const T>(x),
                            matrix_of<const T>(w), matrix_of<R>(y), store(adds));
      if (bias.data == nullptr) return;
      host::bias_forward<R>(parallel_, pointer<R>(bias.data), matrix_of<R>(y));
    });
  });
}

void HostDevice::linear_input_gradient(StreamId stream, Matrix d_y, Matrix w, Matrix d_x) {
  enqueue(stream, [=, this] {
    with_types({d_y.dtype, w.dtype}, [&]<class D, class T>() {
      host::matmul<D, T, T>(parallel_, host::Layout::kNN, matrix_of<const D>(d_y),
                            matrix_of<const T>(w), matrix_of<T>(d_x));
    });
  });
}

void HostDevice::linear_weight_gradient(StreamId stream, Matrix d_y, Matrix x, Matrix d_w,
                                        bool adds) {
  enqueue(stream, [=, this] {
    with_types({d_y.dtype, x.dtype, d_w.dtype}, [&]<class D, class T, class G>() {
      host::matmul<D, T, G>(parallel_, host::Layout::kTN, matrix_of<const D>(d_y),
                            matrix_of<const T>(x), matrix_of<G>(d_w), store(adds));
    });
  });
}

void HostDevice::bias_gradient(StreamId stream, Matrix d_y, Array d_bias, bool adds,
                               float* scratch) {
  enqueue(stream, [=, this] {
    with_types({d_y.dtype, d_bias.dtype}, [&]<class T, class G>() {
      host::bias_gradient<T, G>(parallel_, matrix_of<const T>(d_y), pointer<G>(d_bias.data),
                                scratch, store(adds));
    });
  });
}

void HostDevice::quantize(StreamId stream, Matrix from, const kernels::Fp8Matrix& rows,
                          const kernels::Fp8Matrix& columns) {
  enqueue(stream, [=, this] {
    with_types({from.dtype}, [&]<class T>() {
      if (rows.codes != nullptr)
        host::quantize<T>(parallel_, matrix_of<const T>(from), false, rows);
      if (columns.codes != nullptr)
        host::quantize<T>(parallel_, matrix_of<const T>(from), true, columns);
    });
  });
}

void HostDevice::fp8_product(StreamId stream, const kernels::Fp8Matrix& a,
                             const kernels::Fp8Matrix& b, const Addends& addends, Matrix out) {
  const bool adds = addends.matrix.data != nullptr;
  if (adds && addends.matrix.data != out.data) copy_rows(stream, addends.matrix, out);
  enqueue(stream, [=, this, bias = addends.bias] {
    with_types({out.dtype}, [&]<class R>() {
      host::fp8_matmul<R>(parallel_, a, b, matrix_of<R>(out), store(adds));
      if (bias.data == nullptr) return;
      host::bias_forward<R>(parallel_, pointer<R>(bias.data), matrix_of<R>(out));
    });
  });
}

void HostDevice::rope(StreamId stream, PackedHeads heads, RopeTables tables,
                      const std::int32_t* positions, bool backward) {
  enqueue(stream, [=, this] {
    const kernels::AttentionShape& s = heads.shape;
    // Query and key heads lie side by side and turn by the same angles.
    const host::Rows rows{s.tokens(), s.heads + s.kv_heads, s.head_dim, heads.packed.stride};
    const auto direction =
        backward ? host::RopeDirection::kBackward : host::RopeDirection::kForward;
    const kernels::RopeView view{tables.positions, tables.pairs, tables.cosine, tables.sine};
    with_types({heads.packed.dtype}, [&]<class T>() {
      host::rope<T>(parallel_, rows, view, positions, s.seq, direction,
                    pointer<T>(heads.packed.data));
    });
  });
}

void HostDevice::attention_forward(StreamId stream, PackedHeads heads, PackedDocuments documents,
                                   Matrix out, float* statistics) {
  enqueue(stream, [=, this] {
    with_types({out.dtype}, [&]<class T>() {
      const Packed<const T> in(heads, out.stride);
      host::attention_forward<T>(parallel_, heads.shape, in.layout, in.q, in.k, in.v,
                                 documents.first_key, pointer<T>(out.data), statistics);
    });
  });
}

void HostDevice::attention_backward(StreamId stream, PackedHeads heads, PackedDocuments documents,
                                    Matrix out, const float* statistics, Matrix d_out,
                                    PackedHeads d_heads, void* workspace, Bytes) {
  enqueue(stream, [=, this] {
    with_types({out.dtype}, [&]<class T>() {
      const Packed<const T> in(heads, out.stride);
      const Packed<T> d_in(d_heads, out.stride);
      SHARDWRIGHT_CHECK(heads.packed.stride == d_heads.packed.stride, "strides {} and {}",
                        heads.packed.stride, d_heads.packed.stride);
      host::attention_backward<T>(parallel_, heads.shape, in.layout, in.q, in.k, in.v,
                                  documents.first_key,
                                  pointer<T>(static_cast<const void*>(out.data)), statistics,
                                  pointer<T>(static_cast<const void*>(d_out.data)), d_in.q, d_in.k,
                                  d_in.v, static_cast<float*>(workspace));
    });
  });
}

void HostDevice::activation_forward(StreamId stream, Activation activation, Matrix in, Matrix out) {
  enqueue(stream, [=, this] {
    with_types({in.dtype}, [&]<class T>() {
      if (in.cols == out.cols) {
        host::activation_forward<T>(parallel_, activation, matrix_of<const T>(in),
                                    matrix_of<T>(out));
      } else {
        host::gated_forward<T>(parallel_, activation, matrix_of<const T>(in.col_range(0, out.cols)),
                               matrix_of<const T>(in.col_range(out.cols, out.cols)),
                               matrix_of<T>(out));
      }
    });
  });
}

void HostDevice::activation_backward(StreamId stream, Activation activation, Matrix in,
                                     Matrix d_out, Matrix d_in) {
  enqueue(stream, [=, this] {
    with_types({in.dtype}, [&]<class T>() {
      const std::int64_t cols = d_out.cols;
      if (in.cols == cols) {
        host::activation_backward<T>(parallel_, activation, matrix_of<const T>(in),
                                     matrix_of<const T>(d_out), matrix_of<T>(d_in));
      } else {
        host::gated_backward<T>(parallel_, activation, matrix_of<const T>(in.col_range(0, cols)),
                                matrix_of<const T>(in.col_range(cols, cols)),
                                matrix_of<const T>(d_out), matrix_of<T>(d_in.col_range(0, cols)),
                                matrix_of<T>(d_in.col_range(cols, cols)));
      }
    });
  });
}

void HostDevice::cross_entropy(StreamId stream, Matrix logits, const std::int32_t* targets,
                               double softcap, bool gradient, LossSums* sums, double* scratch) {
  enqueue(stream, [=, this] {
    SHARDWRIGHT_CHECK(logits.dtype == DType::kFp32 && logits.stride == logits.cols,
                      "logits of type {} and stride {}", name_of(logits.dtype), logits.stride);
    const host::LmLoss loss =
        host::cross_entropy(parallel_, matrix_of<float>(logits), tokens_of(targets, logits.rows),
                            gradient, {scratch, static_cast<std::size_t>(logits.rows)}, softcap);
    sums->loss += loss.sum;
    sums->tokens += loss.count;
  });
}

void HostDevice::vocabulary_statistics(StreamId stream, Matrix logits, const std::int32_t* targets,
                                       std::int64_t first_vocab, double softcap,
                                       VocabularyPart* parts) {
  enqueue(stream, [=, this] {
    SHARDWRIGHT_CHECK(logits.dtype == DType::kFp32, "logits of type {}", name_of(logits.dtype));
    host::vocabulary_statistics(parallel_, matrix_of<float>(logits),
                                tokens_of(targets, logits.rows), first_vocab,
                                {parts, static_cast<std::size_t>(logits.rows)}, softcap);
  });
}

void HostDevice::vocabulary_loss(StreamId stream, Matrix logits, const std::int32_t* targets,
                                 std::int64_t first_vocab, double softcap, bool gradient,
                                 VocabularyParts parts, LossSums* sums, double* scratch) {
  enqueue(stream, [=, this] {
    SHARDWRIGHT_CHECK(logits.dtype == DType::kFp32, "logits of type {}", name_of(logits.dtype));
    const auto losses = static_cast<std::size_t>(sums == nullptr ? 0 : logits.rows);
    const host::LmLoss loss =
        host::vocabulary_loss(parallel_, matrix_of<float>(logits), tokens_of(targets, logits.rows),
                              first_vocab, parts, gradient, {scratch, losses}, softcap);
    if (sums == nullptr) return;
    sums->loss += loss.sum;
    sums->tokens += loss.count;
  });
}

}  // namespace shardwright::exec
