// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/cuda_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "exec/host_memory.h"
#include "exec/model_ops.h"
#include "exec/typed.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/rope.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/units.h"
#include "sim/core/workspace.h"

namespace shardwright::exec {

namespace {

constexpr std::size_t kStagingBytes = std::size_t{4} << 20;
constexpr std::size_t kStagingAlignment = 64;
/// Readings of both clocks; the quickest one counts.
constexpr int kClockReadings = 5;

Nanoseconds host_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Lets kernels of this GPU read the memory of others.
void enable_peer_access(int gpu, const std::vector<int>& peers) {
  for (const int peer : peers) {
    int can = 0;
    if (peer == gpu) continue;
    SHARDWRIGHT_CUDA(cudaDeviceCanAccessPeer(&can, gpu, peer));
    if (can == 0) {
      throw Error(fmt::format("GPU {} cannot read the memory of GPU {}, expected ranks that NCCL "
                              "connects (--communicator nccl) or that share one GPU "
                              "(CUDA_VISIBLE_DEVICES=0)",
                              gpu, peer),
                  ExitCode::kMissingDevice);
    }
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
    } else {
      SHARDWRIGHT_CUDA(status);
    }
  }
}

}  // namespace

class CudaDevice::CudaAllocation final : public Allocation {
 public:
  CudaAllocation(CudaDevice& device, const Allocator& allocator, Bytes bytes)
      : device_(device),
        bytes_(bytes),
        give_back_(allocator.give_back),
        data_(allocator.make(bytes)) {
    device_.allocated_ += bytes;
    device_.peak_ = std::max(device_.peak_, device_.allocated_);
  }
  ~CudaAllocation() override {
    give_back_(data_);
    device_.allocated_ -= bytes_;
  }
  void* data() const override { return data_; }

 private:
  CudaDevice& device_;
  Bytes bytes_;
  std::function<void(void*)> give_back_;
  void* data_;
};

class CudaDevice::CudaEvent final : public Event {
 public:
  cudaEvent_t handle() const { return handle_.get(); }
  bool has_passed() const override { return cudaEventQuery(handle_.get()) == cudaSuccess; }

 private:
  cuda::EventHandle handle_ = cuda::make_event_handle(cuda::EventUse::kOrder);
};

class CudaDevice::PinnedAllocation final : public Allocation {
 public:
  explicit PinnedAllocation(cuda::PinnedMemory memory) : memory_(std::move(memory)) {}
  void* data() const override { return memory_.get(); }

 private:
  cuda::PinnedMemory memory_;
};

CudaDevice::CurrentGpu::CurrentGpu(int gpu) {
  SHARDWRIGHT_CUDA(cudaSetDevice(gpu));
}

CudaDevice::CudaDevice(const CudaDeviceOptions& options)
    : options_(options), current_gpu_(options.gpu) {
  cudaDeviceProp properties{};
  SHARDWRIGHT_CUDA(cudaGetDeviceProperties(&properties, options_.gpu));
  compute_major_ = properties.major;
  multiprocessors_ = properties.multiProcessorCount;
  enable_peer_access(options_.gpu, options_.peers);
  staging_ = cuda::allocate_pinned(kStagingBytes);
}

CudaDevice::~CudaDevice() {
  drain();
}

std::unique_ptr<Allocation> CudaDevice::allocate(Bytes bytes) {
  const auto make = [](Bytes size) {
    void* data = nullptr;
    SHARDWRIGHT_CUDA(cudaMalloc(&data, static_cast<std::size_t>(size)));
    return data;
  };
  return allocate_by({make, [](void* data) { cudaFree(data); }}, bytes);
}

std::unique_ptr<Allocation> CudaDevice::allocate_by(const Allocator& allocator, Bytes bytes) {
  try {
    return std::make_unique<CudaAllocation>(*this, allocator, bytes);
  } catch (const Error& error) {
    std::size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) throw;
    throw Error(fmt::format("the plan needs {} bytes of GPU memory at once and {} of {} are free: "
                            "{}",
                            bytes, free, total, error.what()),
                ExitCode::kFailed);
  }
}

void CudaDevice::require_free(Bytes planned) const {
  std::size_t free = 0, total = 0;
  SHARDWRIGHT_CUDA(cudaMemGetInfo(&free, &total));
  if (static_cast<std::size_t>(planned) <= free) return;
  throw Error(fmt::format("GPU {} has {:.2f} GiB of {:.2f} free, but a rank of this plan needs "
                          "{:.2f}; expected a plan for less (shardwright tune), or that whatever "
                          "else uses the GPU ends",
                          options_.gpu, static_cast<double>(free) / kGiB,
                          static_cast<double>(total) / kGiB, static_cast<double>(planned) / kGiB),
              ExitCode::kInfeasible);
}

std::unique_ptr<Allocation> CudaDevice::allocate_host(Bytes bytes) {
  void* data = nullptr;
  if (cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocPortable) != cudaSuccess) {
    cudaGetLastError();  // it is answered here
    return pageable_memory(bytes);
  }
  return std::make_unique<PinnedAllocation>(cuda::PinnedMemory(data));
}

std::unique_ptr<Allocation> CudaDevice::allocate_shared(Bytes bytes) {
  return std::make_unique<PinnedAllocation>(cuda::allocate_pinned(static_cast<std::size_t>(bytes)));
}

StreamId CudaDevice::make_stream(const char* name, int priority) {
  streams_.push_back({name, cuda::make_stream_handle(priority), nullptr, 0, {}, 0});
  return static_cast<StreamId>(streams_.size()) - 1;
}

std::vector<std::pair<std::string, cudaStream_t>> CudaDevice::named_streams() const {
  std::vector<std::pair<std::string, cudaStream_t>> all;
  for (const Stream& one : streams_) all.emplace_back(one.name, one.handle.get());
  return all;
}

std::unique_ptr<Event> CudaDevice::make_event() {
  return std::make_unique<CudaEvent>();
}

void CudaDevice::record(StreamId stream, Event& event) {
  always([&] {
    SHARDWRIGHT_CUDA(
        cudaEventRecord(static_cast<CudaEvent&>(event).handle(), this->stream(stream)));
  });
}

void CudaDevice::wait(StreamId stream, const Event& event) {
  always([&] {
    SHARDWRIGHT_CUDA(cudaStreamWaitEvent(this->stream(stream),
                                         static_cast<const CudaEvent&>(event).handle(), 0));
  });
}

void CudaDevice::synchronize() {
  drain();
  if (!failure_.failed()) {
    for (const Delivery& delivery : deliveries_) {
      std::memcpy(delivery.to, delivery.from, delivery.bytes);
    }
    always([&] { resolve_timestamps(); });
  }
  deliveries_.clear();
  timestamps_.clear();
  host_functions_.clear();
  staged_bytes_ = 0;
  failure_.rethrow();
}

void CudaDevice::drain() noexcept {
  for (const Stream& one : streams_) {
    always([&] { SHARDWRIGHT_CUDA(cudaStreamSynchronize(one.handle.get())); });
  }
}

void CudaDevice::timestamp(StreamId stream, Nanoseconds* at) {
  enqueue([&] {
    const std::size_t event = timestamps_.size();
    if (event == timing_events_.size()) {
      timing_events_.push_back(cuda::make_event_handle(cuda::EventUse::kTime));
    }
    SHARDWRIGHT_CUDA(cudaEventRecord(timing_events_[event].get(), this->stream(stream)));
    timestamps_.push_back({at, event});
  });
}

void CudaDevice::resolve_timestamps() {
  if (timestamps_.empty()) return;
  // Both clocks are read at once, as nearly as that goes, while the GPU is idle.
  cuda::EventHandle anchor;
  Nanoseconds anchor_ns = 0, shortest = 0;
  for (int i = 0; i < kClockReadings; ++i) {
    cuda::EventHandle reading = cuda::make_event_handle(cuda::EventUse::kTime);
    const Nanoseconds begin = host_now();
    SHARDWRIGHT_CUDA(cudaEventRecord(reading.get(), streams_.front().handle.get()));
    SHARDWRIGHT_CUDA(cudaEventSynchronize(reading.get()));
    const Nanoseconds took = host_now() - begin;
    if (anchor != nullptr && took >= shortest) continue;
    anchor = std::move(reading);
    anchor_ns = begin + took / 2;
    shortest = took;
  }
  for (const Timestamp& stamp : timestamps_) {
    float milliseconds = 0;
    SHARDWRIGHT_CUDA(
        cudaEventElapsedTime(&milliseconds, timing_events_[stamp.event].get(), anchor.get()));
    *stamp.at = anchor_ns - std::llround(static_cast<double>(milliseconds) * 1e6);
  }
}

void CudaDevice::call(StreamId stream, std::function<void()> function) {
  enqueue([&] {
    host_functions_.push_back(std::make_unique<std::function<void()>>(
        [this, body = std::move(function)] { enqueue([&] { body(); }); }));
    const cudaHostFn_t run = [](void* body) { (*static_cast<std::function<void()>*>(body))(); };
    SHARDWRIGHT_CUDA(cudaLaunchHostFunc(this->stream(stream), run, host_functions_.back().get()));
  });
}

void CudaDevice::limit_run_ahead(StreamId stream) {
  enqueue([&] {
    Stream& s = at(stream);
    const auto ring = static_cast<std::size_t>(options_.run_ahead);
    if (s.passed.size() < ring) {
      s.passed.push_back(cuda::make_event_handle(cuda::EventUse::kOrder));
    } else {
      SHARDWRIGHT_CUDA(cudaEventSynchronize(s.passed[s.passes % ring].get()));
    }
    SHARDWRIGHT_CUDA(cudaEventRecord(s.passed[s.passes % ring].get(), s.handle.get()));
    ++s.passes;
  });
}

void CudaDevice::leave_multiprocessors(int count) {
  products_.use_multiprocessors(count > 0 ? std::max(1, multiprocessors_ - count) : 0);
}

void CudaDevice::lend_scratch(StreamId stream, void* data, Bytes bytes) {
  at(stream).scratch = data;
  at(stream).scratch_bytes = bytes;
}

void* CudaDevice::stage(std::size_t bytes) {
  const auto begin = static_cast<std::size_t>(
      round_up(static_cast<Bytes>(staged_bytes_), static_cast<Bytes>(kStagingAlignment)));
  if (begin + bytes > kStagingBytes) return nullptr;
  staged_bytes_ = begin + bytes;
  return static_cast<std::byte*>(staging_.get()) + begin;
}

bool CudaDevice::is_pageable(const void* data) const {
  cudaPointerAttributes attributes{};
  SHARDWRIGHT_CUDA(cudaPointerGetAttributes(&attributes, data));
  return attributes.type == cudaMemoryTypeUnregistered;
}

void CudaDevice::copy(StreamId stream, void* to, const void* from, Bytes bytes) {
  if (bytes == 0) return;
  enqueue([&] {
    const auto size = static_cast<std::size_t>(bytes);
    const bool from_host = is_pageable(from), to_host = is_pageable(to);
    if (void* staged = from_host != to_host ? stage(size) : nullptr) {
      if (from_host) {
        std::memcpy(staged, from, size);
        from = staged;
      } else {
        deliveries_.push_back({to, staged, size});
        to = staged;
      }
    }
    SHARDWRIGHT_CUDA(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, this->stream(stream)));
  });
}

// Copies, sums and the update: operations on flat arrays.

namespace kc = kernels::cuda;

static_assert(offsetof(StepTotals, scale) == offsetof(kc::StepTotalsView, scale) &&
              offsetof(StepTotals, tokens) == offsetof(kc::StepTotalsView, tokens));

void CudaDevice::copy_rows(StreamId stream, Matrix from, Matrix to) {
  enqueue([&] {
    const Bytes width = bytes_of(from.dtype);
    kc::copy_rows(this->stream(stream), from.data, from.stride * width, to.data, to.stride * width,
                  from.rows, from.cols * width);
  });
}

void CudaDevice::zero(StreamId stream, void* data, Bytes bytes) {
  if (bytes == 0) return;
  enqueue([&] {
    SHARDWRIGHT_CUDA(
        cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes), this->stream(stream)));
  });
}

void CudaDevice::poison(StreamId stream, void* data, Bytes bytes, DType dtype) {
  enqueue([&] {
    with_types({dtype}, [&]<class T>() {
      kc::poison(this->stream(stream), pointer<T>(data), bytes / bytes_of(dtype));
    });
  });
}

void CudaDevice::cast(StreamId stream, Array from, Array to) {
  enqueue([&] {
    with_types({from.dtype, to.dtype}, [&]<class F, class T>() {
      kc::cast<F, T>(this->stream(stream), pointer<F>(from.data), pointer<T>(to.data), to.size);
    });
  });
}

void CudaDevice::accumulate(StreamId stream, Array in, Array sum) {
  enqueue([&] {
    with_types({in.dtype, sum.dtype}, [&]<class I, class S>() {
      kc::accumulate<I, S>(this->stream(stream), pointer<I>(in.data), pointer<S>(sum.data),
                           sum.size);
    });
  });
}

void CudaDevice::fold(StreamId stream, std::span<const void* const> inputs, DType input_dtype,
                      Array out, bool adds, SumOrder order) {
  enqueue([&] {
    with_types({input_dtype, out.dtype}, [&]<class In, class Out>() {
      const auto fold = order == SumOrder::kTree ? kc::fold_tree<In, Out> : kc::fold<In, Out>;
      fold(this->stream(stream), inputs, pointer<Out>(out.data), adds, out.size);
    });
  });
}

void CudaDevice::sum_of_squares(StreamId stream, Array x, std::int64_t* words) {
  enqueue([&] {
    with_types({x.dtype}, [&]<class T>() {
      kc::sum_of_squares<T>(this->stream(stream), pointer<T>(x.data), x.size, words);
    });
  });
}

void CudaDevice::finish_gradients(StreamId stream, const StepRecords& records,
                                  const ClipOptions& options, StepTotals* totals) {
  enqueue([&] {
    kc::step_totals(this->stream(stream),
                    {records.data, records.words, records.world_ranks, records.micro_steps},
                    options.max_norm, options.skip_above,
                    reinterpret_cast<kc::StepTotalsView*>(totals));
  });
}

void CudaDevice::adamw(StreamId stream, const kernels::AdamW& options, const StepTotals* totals,
                       std::span<const UpdateSegment> segments, Array gradient, Array parameter,
                       Array first_moment, Array second_moment) {
  enqueue([&] {
    std::vector<kc::AdamWSegment> parts;
    for (const UpdateSegment& s : segments) {
      parts.push_back(
          {s.offset, s.count, s.first_index, s.decays, s.row_begin, s.row_length, s.row_stride});
    }
    with_types({parameter.dtype, gradient.dtype, first_moment.dtype},
               [&]<class P, class G, class M>() {
                 kc::adamw<P, G, M>(this->stream(stream), options, &totals->scale, parts,
                                    pointer<G>(gradient.data), pointer<P>(parameter.data),
                                    pointer<M>(first_moment.data), pointer<M>(second_moment.data));
               });
  });
}

// The operations of a transformer, handed to the kernels in kernels/cuda and to cuBLASLt.

namespace host = kernels::host;
namespace kc = kernels::cuda;

namespace {

host::Store store(bool adds) {
  return adds ? host::Store::kAdd : host::Store::kOverwrite;
}

bool same(const kc::AttentionProblem& a, const kc::AttentionProblem& b) {
  return a.shape.batch == b.shape.batch && a.shape.seq == b.shape.seq &&
         a.shape.heads == b.shape.heads && a.shape.kv_heads == b.shape.kv_heads &&
         a.shape.head_dim == b.shape.head_dim && a.shape.scale == b.shape.scale &&
         a.shape.softcap == b.shape.softcap && a.shape.alibi == b.shape.alibi &&
         a.dtype == b.dtype && a.packed_stride == b.packed_stride && a.out_stride == b.out_stride &&
         a.documents == b.documents && a.most_documents == b.most_documents;
}

}  // namespace

void CudaDevice::embedding_forward(StreamId stream, Matrix table, std::int64_t first_row,
                                   const std::int32_t* tokens, double scale, bool adds,
                                   Matrix out) {
  enqueue([&] {
    with_types({table.dtype}, [&]<class T>() {
      kc::embedding_forward<T>(this->stream(stream), matrix_of<const T>(table), tokens,
                               matrix_of<T>(out), scale, store(adds), first_row);
    });
  });
}

void CudaDevice::embedding_backward(StreamId stream, const std::int32_t* tokens, Matrix d_out,
                                    double scale, bool adds, Matrix d_table, std::int64_t first_row,
                                    void* scratch) {
  enqueue([&] {
    with_types({d_out.dtype, d_table.dtype}, [&]<class T, class G>() {
      kc::embedding_backward<T, G>(this->stream(stream), tokens, matrix_of<const T>(d_out),
                                   matrix_of<G>(d_table), store(adds),
                                   pointer<std::int32_t>(scratch), scale, first_row);
    });
  });
}

void CudaDevice::product(StreamId stream, cuda::ProductForm form, Matrix a, Matrix b, Matrix out,
                         const Addends& addends) {
  enqueue([&] {
    const Stream& s = at(stream);
    products_.run({form, a, b, addends.matrix, addends.bias.data, out}, s.scratch, s.scratch_bytes,
                  s.handle.get());
  });
}

void CudaDevice::linear_forward(StreamId stream, Matrix x, Matrix w, const Addends& addends,
                                Matrix y) {
  product(stream, cuda::ProductForm::kNT, x, w, y, addends);
}

void CudaDevice::linear_input_gradient(StreamId stream, Matrix d_y, Matrix w, Matrix d_x) {
  product(stream, cuda::ProductForm::kNN, d_y, w, d_x);
}

void CudaDevice::linear_weight_gradient(StreamId stream, Matrix d_y, Matrix x, Matrix d_w,
                                        bool adds) {
  product(stream, cuda::ProductForm::kTN, d_y, x, d_w, {adds ? d_w : Matrix{}, {}});
}

void CudaDevice::bias_gradient(StreamId stream, Matrix d_y, Array d_bias, bool adds,
                               float* scratch) {
  enqueue([&] {
    with_types({d_y.dtype, d_bias.dtype}, [&]<class T, class G>() {
      kc::bias_gradient<T, G>(this->stream(stream), matrix_of<const T>(d_y),
                              pointer<G>(d_bias.data), scratch, store(adds));
    });
  });
}

kc::AttentionProblem CudaDevice::problem_of(const kernels::AttentionShape& s, DType dtype,
                                            std::int64_t packed_stride, std::int64_t out_stride,
                                            const PackedDocuments& documents) const {
  return {.shape = s,
          .dtype = dtype,
          .packed_stride = packed_stride,
          .out_stride = out_stride,
          .documents = documents.first_key != nullptr,
          .most_documents = cuda::document_bound(s.batch, documents.count),
          .most_workspace_bytes = attention_workspace_bytes(
              s.batch, s.seq, s.heads, s.kv_heads, s.head_dim, dtype, options_.deterministic)};
}

const cuda::AttentionChoice& CudaDevice::attention_for(const kc::AttentionProblem& problem) {
  for (const ChosenAttention& chosen : chosen_attention_) {
    if (same(chosen.problem, problem)) return chosen.choice;
  }
  Bytes scratch = 0;
  for (const Stream& one : streams_) scratch = std::max(scratch, one.scratch_bytes);
  cuda::AttentionChoice choice =
      attention_.choose(problem, {.wish = options_.attention,
                                  .deterministic = options_.deterministic,
                                  .most_forward_bytes = scratch});
  chosen_attention_.push_back({problem, std::move(choice)});
  return chosen_attention_.back().choice;
}

cuda::AttentionChoice CudaDevice::choose_attention(const kernels::AttentionShape& shape,
                                                   DType dtype, bool documents) {
  const std::int64_t out_stride = shape.heads * shape.head_dim;
  const std::int64_t packed_stride = out_stride + 2 * shape.kv_heads * shape.head_dim;
  kc::AttentionProblem problem = problem_of(shape, dtype, packed_stride, out_stride, {});
  if (!documents) return attention_for(problem);
  // Plans for each number of documents are made now, and for whole sequences; what serves the
  // smallest number is told.
  attention_for(problem);
  problem.documents = true;
  attention_for(problem);
  for (const std::int64_t bound : cuda::document_bounds(shape.batch)) {
    problem.most_documents = bound;
    attention_for(problem);
  }
  problem.most_documents = cuda::document_bounds(shape.batch).front();
  return attention_for(problem);
}

std::vector<std::int64_t> CudaDevice::document_bounds(std::int64_t batch) const {
  const auto bounds = cuda::document_bounds(batch);
  return {bounds.begin(), bounds.end()};
}

void CudaDevice::attention_forward(StreamId stream, PackedHeads heads, PackedDocuments documents,
                                   Matrix out, float* statistics) {
  enqueue([&] {
    const kc::AttentionProblem problem =
        problem_of(heads.shape, out.dtype, heads.packed.stride, out.stride, documents);
    attention_for(problem).implementation->forward(
        problem, {heads.packed.data, documents.first_key, out.data, statistics, at(stream).scratch},
        this->stream(stream));
  });
}

void CudaDevice::attention_backward(StreamId stream, PackedHeads heads, PackedDocuments documents,
                                    Matrix out, const float* statistics, Matrix d_out,
                                    PackedHeads d_heads, void* workspace, Bytes workspace_bytes) {
  enqueue([&] {
    SHARDWRIGHT_CHECK(heads.packed.stride == d_heads.packed.stride, "strides {} and {}",
                      heads.packed.stride, d_heads.packed.stride);
    const kc::AttentionProblem problem =
        problem_of(heads.shape, out.dtype, heads.packed.stride, out.stride, documents);
    kc::Attention& attention = *attention_for(problem).implementation;
    SHARDWRIGHT_CHECK(attention.backward_workspace_bytes(problem) <= workspace_bytes,
                      "a workspace of {} bytes", workspace_bytes);
    attention.backward(problem,
                       {heads.packed.data, documents.first_key, out.data, statistics, d_out.data,
                        d_heads.packed.data, workspace},
                       this->stream(stream));
  });
}

void CudaDevice::norm_forward(StreamId stream, Heads x, const Norm& norm, Heads y,
                              float* statistics) {
  enqueue([&] {
    with_types({x.dtype}, [&]<class T>() {
      kc::norm_forward<T>(this->stream(stream), norm_of<T>(x, norm, y, statistics));
    });
  });
}

void CudaDevice::norm_backward(StreamId stream, Heads x, const Norm& norm, const float* statistics,
                               Heads d_y, const void* d_residual, Heads d_x, Array d_weight,
                               bool adds, float* scratch) {
  enqueue([&] {
    with_types({x.dtype, d_weight.dtype}, [&]<class T, class G>() {
      kc::norm_backward<T, G>(this->stream(stream),
                              norm_gradient_of<T>(x, norm, statistics, d_y, d_residual, d_x),
                              pointer<G>(d_weight.data), scratch, store(adds));
    });
  });
}

bool CudaDevice::multiplies_turned(kernels::Fp8Scaling scaling) const {
  return scaling == kernels::Fp8Scaling::kTensor && multiplies_fp8_both_ways(compute_major_);
}

void CudaDevice::quantize(StreamId stream, Matrix from, const kernels::Fp8Matrix& rows,
                          const kernels::Fp8Matrix& columns) {
  enqueue([&] {
    const auto scaling = rows.codes != nullptr ? rows.scaling : columns.scaling;
    const std::int64_t unit =
        scaling == kernels::Fp8Scaling::kBlocks ? kernels::kFp8Block : kc::kFp8Multiple;
    SHARDWRIGHT_CHECK(from.dtype == DType::kBf16 && from.rows % unit == 0 && from.cols % unit == 0,
                      "{} x {} {} in fp8", from.rows, from.cols, name_of(from.dtype));
    kc::quantize(this->stream(stream), matrix_of<const kernels::BFloat16>(from), rows, columns);
  });
}

void CudaDevice::fp8_product(StreamId stream, const kernels::Fp8Matrix& a,
                             const kernels::Fp8Matrix& b, const Addends& addends, Matrix out) {
  enqueue([&] {
    cuda::Product product = cuda::fp8_product_of(a, b, out);
    product.addend = addends.matrix;
    product.bias = addends.bias.data;
    const Stream& s = at(stream);
    products_.run(product, s.scratch, s.scratch_bytes, s.handle.get());
  });
}

void CudaDevice::rope(StreamId stream, PackedHeads heads, RopeTables tables,
                      const std::int32_t* positions, bool backward) {
  enqueue([&] {
    const kernels::AttentionShape& s = heads.shape;
    // Query and key heads lie side by side and turn by the same angles.
    const host::Rows rows{s.tokens(), s.heads + s.kv_heads, s.head_dim, heads.packed.stride};
    const kernels::RopeView view{tables.positions, tables.pairs, tables.cosine, tables.sine};
    with_types({heads.packed.dtype}, [&]<class T>() {
      kc::rope<T>(this->stream(stream), rows, view, positions, s.seq, backward,
                  pointer<T>(heads.packed.data));
    });
  });
}

void CudaDevice::activation_forward(StreamId stream, Activation activation, Matrix in, Matrix out) {
  enqueue([&] {
    with_types({in.dtype}, [&]<class T>() {
      kc::activation_forward<T>(this->stream(stream), activation, matrix_of<const T>(in),
                                matrix_of<T>(out));
    });
  });
}

void CudaDevice::activation_backward(StreamId stream, Activation activation, Matrix in,
                                     Matrix d_out, Matrix d_in) {
  enqueue([&] {
    with_types({in.dtype}, [&]<class T>() {
      kc::activation_backward<T>(this->stream(stream), activation, matrix_of<const T>(in),
                                 matrix_of<const T>(d_out), matrix_of<T>(d_in));
    });
  });
}

void CudaDevice::cross_entropy(StreamId stream, Matrix logits, const std::int32_t* targets,
                               double softcap, bool gradient, LossSums* sums, double* scratch) {
  enqueue([&] {
    with_types({logits.dtype}, [&]<class T>() {
      kc::cross_entropy<T>(this->stream(stream), matrix_of<T>(logits), targets, kIgnoreTarget,
                           gradient, &sums->loss, &sums->tokens, scratch, softcap);
    });
  });
}

void CudaDevice::vocabulary_statistics(StreamId stream, Matrix logits, const std::int32_t* targets,
                                       std::int64_t first_vocab, double softcap,
                                       VocabularyPart* parts) {
  enqueue([&] {
    with_types({logits.dtype}, [&]<class T>() {
      kc::vocabulary_statistics<T>(this->stream(stream), matrix_of<const T>(logits), targets,
                                   kIgnoreTarget, first_vocab, parts, softcap);
    });
  });
}

void CudaDevice::vocabulary_loss(StreamId stream, Matrix logits, const std::int32_t* targets,
                                 std::int64_t first_vocab, double softcap, bool gradient,
                                 VocabularyParts parts, LossSums* sums, double* scratch) {
  enqueue([&] {
    with_types({logits.dtype}, [&]<class T>() {
      if (sums != nullptr) {
        kc::vocabulary_losses(this->stream(stream), targets, logits.rows, kIgnoreTarget, parts,
                              &sums->loss, &sums->tokens, scratch);
      }
      if (gradient) {
        kc::vocabulary_gradient<T>(this->stream(stream), matrix_of<T>(logits), targets,
                                   kIgnoreTarget, first_vocab, parts, softcap);
      }
    });
  });
}

}  // namespace shardwright::exec
