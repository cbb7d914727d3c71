// SPDX-License-Identifier: Apache-2.0
// Copies, sums and the update: operations on flat arrays.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "exec/host/host_device.h"
#include "exec/typed.h"
#include "kernels/host/adamw.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/simd/kernels.h"
#include "sim/core/base/check.h"

namespace shardwright::exec {

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
    with_types({input_dtype, out.dtype}, [&]<class In, class Out>() {
      if (order == SumOrder::kTree) {
        host::fold_tree<In, Out>(parallel_, list, span_of<Out>(out), adds);
        return;
      }
      parallel_.for_ranges(
          out.size, kGrain, [&](std::int64_t begin, std::int64_t end, host::Scratch& scratch) {
            fold_range<In, Out>(parallel_.kernels(), list, static_cast<Out*>(out.data), adds, begin,
                                end - begin, scratch);
          });
    });
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

}  // namespace shardwright::exec
