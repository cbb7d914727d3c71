// SPDX-License-Identifier: Apache-2.0
// Copies, sums and the update: operations on flat arrays.
#include <cstddef>
#include <vector>

#include "exec/cuda/cuda_device.h"
#include "exec/typed.h"
#include "kernels/cuda/adamw.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/squares.h"
#include "kernels/cuda/step_totals.h"
#include "sim/core/base/check.h"

namespace shardwright::exec {

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

}  // namespace shardwright::exec
