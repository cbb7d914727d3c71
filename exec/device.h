// SPDX-License-Identifier: Apache-2.0
// What the executor needs from a machine: memory, in-order streams, events, and the operations of a
// transformer on plain views.
//
// Every operation is enqueued on a stream and returns at once; the host waits only in
// synchronize(). An operation may start when all earlier work of its stream is done. wait() orders
// a stream behind the last record() of an event that was issued before it, as with CUDA events;
// waiting for an event that was never recorded is no wait. Views and small tables (spans) that are
// passed must stay valid until the operation has run.
//
// An operation that fails makes the device fail: what is enqueued later is not run, recorded events
// still complete so that nobody hangs, and synchronize() throws the first failure.
//
// Element types may differ between operands; arithmetic is fp32 and results are rounded once.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "exec/array.h"
#include "kernels/arguments.h"
#include "kernels/fp8.h"
#include "sim/core/model.h"
#include "sim/core/units.h"
#include "sim/core/workspace.h"

namespace shardwright::exec {

// The few numbers that ranks exchange once a step, and what follows from them: the loss, the
// gradient norm and the factor by which gradients are multiplied in the update.
//
// Gradients are sums over tokens until the very end, where they are divided once by the number of
// counted tokens of the whole step. The sum of squares is exact and losses are added in the order
// of micro-batches, so the results do not depend on how many ranks there are.

/// Loss of one micro-batch.
struct LossSums {
  double loss = 0;          // sum over counted tokens, in nats
  std::int64_t tokens = 0;  // counted ones
};

/// One record per rank of the world, as plan_workspace lays them out: kExactSumWords words, then
/// LossSums of every micro-batch. Ranks leave out what others count: zero is in its place.
struct StepRecords {
  const std::int64_t* data = nullptr;
  std::int64_t words = 0;  // 8-byte words of a record
  std::int64_t world_ranks = 1;
  std::int64_t micro_steps = 1;

  const std::int64_t* squares(std::int64_t rank) const { return data + rank * words; }
  const LossSums& loss(std::int64_t rank, std::int64_t micro_step) const {
    return reinterpret_cast<const LossSums*>(data + rank * words + kExactSumWords)[micro_step];
  }
};

struct ClipOptions {
  double max_norm = 0;    // 0: no clipping
  double skip_above = 0;  // no update when the norm is larger; 0: always
};

struct StepTotals {
  double loss = 0;  // sum over the counted tokens of the step
  std::int64_t tokens = 0;
  double gradient_norm = 0;  // of the mean loss
  double scale = 0;          // of gradient sums in the update; not finite: no update
  double unused[4] = {0, 0, 0, 0};
};
static_assert(sizeof(LossSums) == 16 && sizeof(StepTotals) == 64);

/// Adds up in the order of micro-batches: micro-batch m of rank r is number m * world_ranks + r.
StepTotals total(const StepRecords& records, const ClipOptions& options);

using kernels::kIgnoreTarget;
using kernels::kWholeTable;
using kernels::VocabularyPart;
using kernels::VocabularyParts;

/// A point in a stream's work. Made by a device; other devices of the same kind in this process can
/// wait for it.
class Event {
 public:
  virtual ~Event() = default;
  /// Whether the work before its last record is done. Any thread may ask, while nothing else of the
  /// device can be asked.
  virtual bool has_passed() const = 0;
};

using StreamId = std::int32_t;

/// Memory that is given back when its owner dies.
class Allocation {
 public:
  virtual ~Allocation() = default;
  virtual void* data() const = 0;
};

/// Memory of a library, which makes it, or throws Error, and takes it back.
struct Allocator {
  std::function<void*(Bytes bytes)> make;
  std::function<void(void* data)> give_back;
};

/// Cosines and sines, each [positions, pairs], in device memory.
struct RopeTables {
  const float* cosine = nullptr;
  const float* sine = nullptr;
  std::int64_t positions = 0;
  std::int64_t pairs = 0;
};

/// The packed query, key and value heads of a layer's tokens, or their gradients.
struct PackedHeads {
  Matrix packed;  // [tokens, (heads + 2 kv_heads) * head_dim]
  kernels::AttentionShape shape;
};

/// The documents packed into the sequences of a micro-batch.
struct PackedDocuments {
  /// Query t sees keys first_key[t] to t of its sequence; null: from the first on.
  const std::int32_t* first_key = nullptr;
  /// How many there are, where they lie one behind the other and first_key is the begin of each;
  /// otherwise 0.
  std::int64_t count = 0;
};

/// A norm and its weights, each [size]. LayerNorm is of matrices only: one head a token.
struct Norm {
  Normalization kind = Normalization::kRmsNorm;
  const void* weight = nullptr;
  const void* bias = nullptr;  // of LayerNorm, where it has one
  double offset = 0;           // of RMSNorm: added to the weight
  double eps = 0;
};

/// What a product adds to its result; without data nothing.
struct Addends {
  Matrix matrix;  // of the result's type and shape; may be the result
  Array bias;     // one number a column
};

/// Parameters [offset, offset + count) of an array that belong to one tensor.
struct UpdateSegment {
  std::int64_t offset = 0;
  std::int64_t count = 0;
  std::uint64_t first_index = 0;  // in the model, independent of sharding
  bool decays = false;
  // Of some columns of a matrix, rows [.., row_length] that lie row_stride apart in the model:
  std::int64_t row_begin = 0;   // place of the first parameter in its row; first_index is that of
                                // the row's begin
  std::int64_t row_length = 0;  // 0: parameters follow one another
  std::int64_t row_stride = 0;

  kernels::ElementIndices indices() const {
    return {first_index, row_begin, row_length, row_stride};
  }
};

/// The order in which `fold` adds.
enum class SumOrder : std::uint8_t {
  /// A chain in fp32, rounded once.
  kRanks,
  /// ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)): every sum but the last is rounded to the type of
  /// the inputs, so that neighbours may be folded elsewhere before and the bits stay. Takes a power
  /// of two of inputs.
  kTree
};

class StreamClocks;

class Device {
 public:
  virtual ~Device() = default;

  // Memory.
  virtual std::unique_ptr<Allocation> allocate(Bytes bytes) = 0;
  /// The same of another's making, which is counted alike.
  virtual std::unique_ptr<Allocation> allocate_by(const Allocator& allocator, Bytes bytes) = 0;
  /// Memory of the host, not counted below; where it can be had, such that copies between it and
  /// the device run at the link's rate and without the host.
  virtual std::unique_ptr<Allocation> allocate_host(Bytes bytes) = 0;
  /// Memory of the host, not counted, that devices of this process copy to and from in the order of
  /// their streams. Throws Error where there is none.
  virtual std::unique_ptr<Allocation> allocate_shared(Bytes bytes) { return allocate_host(bytes); }
  virtual Bytes allocated_bytes() const = 0;
  virtual Bytes peak_allocated_bytes() const = 0;

  // Streams and events.
  virtual StreamId make_stream(const char* name, int priority) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  virtual void record(StreamId stream, Event& event) = 0;
  virtual void wait(StreamId stream, const Event& event) = 0;
  /// Blocks until all streams are idle; throws the first failure of an operation.
  virtual void synchronize() = 0;
  /// Whether an operation has failed. Any thread may ask.
  virtual bool has_failed() const { return false; }
  /// What is enqueued from now on is part of that operation of the caller's.
  virtual void begin_operation(std::int64_t /*number*/) {}
  /// Which one it was that failed first; -1: not known.
  virtual std::int64_t failed_operation() const { return -1; }
  /// Operations run when they are enqueued, on the thread that does it.
  virtual bool runs_inline() const { return false; }
  /// Whether functions of the host may read and write its memory.
  virtual bool shares_host_memory() const { return true; }
  /// As above, but failures stay where they are: for destructors.
  virtual void drain() noexcept = 0;
  /// The clocks of streams whose time is not the wall's (exec/host/host_device.h); else null.
  virtual StreamClocks* clocks() { return nullptr; }
  /// Writes the device's clock to `*at` (host memory) when the stream gets there.
  virtual void timestamp(StreamId stream, Nanoseconds* at) = 0;
  /// Runs a function of the host in the order of the stream. It must not call the device.
  virtual void call(StreamId stream, std::function<void()> function) = 0;
  /// Keeps the host from running far ahead of the stream: may block until what was enqueued some
  /// calls ago is done. Only where all work that the stream waits for has been issued, or is by
  /// other hosts, whatever this one does next.
  virtual void limit_run_ahead(StreamId) {}
  /// That many multiprocessors are mostly others' from now on: products leave them.
  virtual void leave_multiprocessors(int /*count*/) {}
  /// Memory that products on the stream may use while they run; without it they have none.
  virtual void lend_scratch(StreamId, void* /*data*/, Bytes) {}

  // Memory operations. Host memory may be either side of a copy.
  virtual void copy(StreamId stream, void* to, const void* from, Bytes bytes) = 0;
  /// Matrices of one type and shape.
  virtual void copy_rows(StreamId stream, Matrix from, Matrix to) = 0;
  virtual void zero(StreamId stream, void* data, Bytes bytes) = 0;
  /// Fills with signalling NaNs, so that a forgotten wait shows in the loss.
  virtual void poison(StreamId stream, void* data, Bytes bytes, DType dtype) = 0;

  // Elementwise operations on arrays of equal size.
  virtual void cast(StreamId stream, Array from, Array to) = 0;
  virtual void accumulate(StreamId stream, Array in, Array sum) = 0;
  /// out = (adds ? out : 0) + the sum of the inputs; kRanks begins with `out`, kTree ends with it.
  /// `out` may be one of the inputs when it does not add.
  virtual void fold(StreamId stream, std::span<const void* const> inputs, DType input_dtype,
                    Array out, bool adds, SumOrder order) = 0;

  // Embedding.
  // The table may be the rows from `first_row` on of one that ranks share; kWholeTable: it is none,
  // and a token outside it is an error.
  /// out = scale * table[tokens], or that added to `out`; of tokens of other ranks rows of -0,
  /// which are neutral in sums, or nothing added.
  virtual void embedding_forward(StreamId stream, Matrix table, std::int64_t first_row,
                                 const std::int32_t* tokens, double scale, bool adds,
                                 Matrix out) = 0;
  /// `adds`: to a gradient that is already there. The scratch holds tokens + rows + 1 integers.
  virtual void embedding_backward(StreamId stream, const std::int32_t* tokens, Matrix d_out,
                                  double scale, bool adds, Matrix d_table, std::int64_t first_row,
                                  void* scratch) = 0;

  // Norms over each head. y may be x. statistics: rstd [tokens, heads], of LayerNorm followed by
  // means [tokens, heads].
  virtual void norm_forward(StreamId stream, Heads x, const Norm& norm, Heads y,
                            float* statistics) = 0;
  /// d_x = gradient of x (+ d_residual); d_x may be d_y. `adds`: the finished d_weight is added to
  /// what is there. The scratch holds norm_partial_sums(rows, size) * size floats. The gradient of
  /// a bias is bias_gradient's, to be taken before.
  virtual void norm_backward(StreamId stream, Heads x, const Norm& norm, const float* statistics,
                             Heads d_y, const void* d_residual, Heads d_x, Array d_weight,
                             bool adds, float* scratch) = 0;

  // Products with weights W[out, in].
  /// y = x W^T + addends.
  virtual void linear_forward(StreamId stream, Matrix x, Matrix w, const Addends& addends,
                              Matrix y) = 0;
  virtual void linear_input_gradient(StreamId stream, Matrix d_y, Matrix w, Matrix d_x) = 0;
  /// `adds`: the finished product is added to what is there.
  virtual void linear_weight_gradient(StreamId stream, Matrix d_y, Matrix x, Matrix d_w,
                                      bool adds) = 0;
  /// `adds` likewise. The scratch holds kPartialSums * cols floats.
  virtual void bias_gradient(StreamId stream, Matrix d_y, Array d_bias, bool adds,
                             float* scratch) = 0;

  // Products in fp8.
  /// Whether products take an operand whose codes are turned, so that none of a transpose are made.
  virtual bool multiplies_turned(kernels::Fp8Scaling) const { return false; }
  /// Codes and scales of a matrix as it is and of its transpose, scaled and rounded alike where one
  /// scale serves all of it. One that has no codes is not made.
  virtual void quantize(StreamId stream, Matrix from, const kernels::Fp8Matrix& rows,
                        const kernels::Fp8Matrix& columns) = 0;
  /// out[m, n] = a[m, k] b[n, k]^T + addends.
  virtual void fp8_product(StreamId stream, const kernels::Fp8Matrix& a,
                           const kernels::Fp8Matrix& b, const Addends& addends, Matrix out) = 0;

  // Attention on packed heads.
  /// Turns query and key heads in place by their tokens' positions; `backward` the other way.
  virtual void rope(StreamId stream, PackedHeads heads, RopeTables tables,
                    const std::int32_t* positions, bool backward) = 0;
  /// Numbers of documents up to which attention is computed in another way than beyond them; those
  /// of the batch.
  virtual std::vector<std::int64_t> document_bounds(std::int64_t /*batch*/) const { return {}; }
  virtual void attention_forward(StreamId stream, PackedHeads heads, PackedDocuments documents,
                                 Matrix out, float* statistics) = 0;
  /// The workspace holds at least an fp32 number for every element of `out`.
  virtual void attention_backward(StreamId stream, PackedHeads heads, PackedDocuments documents,
                                  Matrix out, const float* statistics, Matrix d_out,
                                  PackedHeads d_heads, void* workspace, Bytes workspace_bytes) = 0;

  // Activation. `in` is [tokens, 2F], gate beside up, when the output is [tokens, F], else as wide.
  virtual void activation_forward(StreamId stream, Activation activation, Matrix in,
                                  Matrix out) = 0;
  virtual void activation_backward(StreamId stream, Activation activation, Matrix in, Matrix d_out,
                                   Matrix d_in) = 0;

  // Loss.
  /// The type in which logits of such parameters are best kept.
  virtual DType logits_dtype(DType parameters) const = 0;
  /// Adds the cross-entropies of the rows to the sums. With `gradient` the logits become the
  /// gradient of their sum. Targets of kIgnoreTarget do not count. The scratch holds a double a
  /// row. A `softcap` other than 0 first makes logits softcap * tanh(logit / softcap).
  virtual void cross_entropy(StreamId stream, Matrix logits, const std::int32_t* targets,
                             double softcap, bool gradient, LossSums* sums, double* scratch) = 0;

  // The same where logits lie in parts of the vocabulary, in two steps with an exchange between
  // them; with one part the bits are those above. Tokens of a part are those from `first_vocab` on.
  /// A part a row. The logits may change: vocabulary_loss takes them as they are left.
  virtual void vocabulary_statistics(StreamId stream, Matrix logits, const std::int32_t* targets,
                                     std::int64_t first_vocab, double softcap,
                                     VocabularyPart* parts) = 0;
  /// Of the parts of the whole vocabulary, in its order. Without sums nothing is counted and the
  /// scratch, a double a row, may be null.
  virtual void vocabulary_loss(StreamId stream, Matrix logits, const std::int32_t* targets,
                               std::int64_t first_vocab, double softcap, bool gradient,
                               VocabularyParts parts, LossSums* sums, double* scratch) = 0;

  // Update.
  /// Adds the exact sum of squares of `x` to the words.
  virtual void sum_of_squares(StreamId stream, Array x, std::int64_t* words) = 0;
  /// Loss, tokens, gradient norm and scale of the step from what all ranks sent.
  virtual void finish_gradients(StreamId stream, const StepRecords& records,
                                const ClipOptions& options, StepTotals* totals) = 0;
  /// AdamW on the segments of arrays of equal size. The gradient is multiplied by totals->scale;
  /// nothing changes where that is not finite. options.weight_decay is for segments that decay.
  virtual void adamw(StreamId stream, const kernels::AdamW& options, const StepTotals* totals,
                     std::span<const UpdateSegment> segments, Array gradient, Array parameter,
                     Array first_moment, Array second_moment) = 0;
};

// The first failure of a device's operations, from whatever thread.

class Failure {
 public:
  /// Keeps the first one, of that operation of the caller's; later ones follow from it.
  void keep(std::exception_ptr error, std::int64_t operation = -1);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// -1: not known.
  std::int64_t operation() const;
  /// Throws the failure if there is one.
  void rethrow() const;

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::int64_t operation_ = -1;
  std::atomic<bool> failed_{false};
};

}  // namespace shardwright::exec
