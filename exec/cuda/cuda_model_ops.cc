// SPDX-License-Identifier: Apache-2.0
// The operations of a transformer, handed to the kernels in kernels/cuda and to cuBLASLt.
#include <algorithm>
#include <utility>

#include "exec/cuda/cuda_device.h"
#include "exec/fp8_gpus.h"
#include "exec/typed.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/fp8.h"
#include "kernels/cuda/layernorm.h"
#include "kernels/cuda/rmsnorm.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/vocabulary_loss.h"
#include "sim/core/base/check.h"
#include "sim/core/workspace.h"

namespace shardwright::exec {

namespace host = kernels::host;
namespace kc = kernels::cuda;

static_assert(kWholeTable == kc::kWholeTable);
static_assert(kPartialSums == kc::kColumnSumBlocks && kNormPartialSums == kc::kNormRowBlocks);

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
  return chosen_attention_.emplace_back(problem, std::move(choice)).choice;
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
    SHARDWRIGHT_CHECK(x.stride == y.stride, "norm from stride {} to {}", x.stride, y.stride);
    with_types({x.dtype}, [&]<class T>() {
      if (norm.kind == Normalization::kLayerNorm) {
        kc::layernorm_forward<T>(this->stream(stream), rows_of(x), pointer<T>(x.data),
                                 pointer<T>(norm.weight), pointer<T>(norm.bias), norm.eps,
                                 pointer<T>(y.data), layer_statistics(statistics, x));
      } else {
        kc::rmsnorm_forward<T>(this->stream(stream), rows_of(x), pointer<T>(x.data),
                               pointer<T>(norm.weight), norm.eps, pointer<T>(y.data), statistics,
                               norm.offset);
      }
    });
  });
}

void CudaDevice::norm_backward(StreamId stream, Heads x, const Norm& norm, const float* statistics,
                               Heads d_y, const void* d_residual, Heads d_x, Array d_weight,
                               bool adds, float* scratch) {
  enqueue([&] {
    SHARDWRIGHT_CHECK(d_x.stride == d_y.stride, "norm gradient from stride {} to {}", d_y.stride,
                      d_x.stride);
    with_types({x.dtype, d_weight.dtype}, [&]<class T, class G>() {
      if (norm.kind == Normalization::kLayerNorm) {
        SHARDWRIGHT_CHECK(x.stride == d_y.stride, "LayerNorm of stride {} and {}", x.stride,
                          d_y.stride);
        kc::layernorm_backward<T, G>(
            this->stream(stream), rows_of(d_y), pointer<T>(x.data), pointer<T>(norm.weight),
            layer_statistics(statistics, x), pointer<T>(d_y.data), pointer<T>(d_residual),
            pointer<T>(d_x.data), pointer<G>(d_weight.data), scratch, store(adds));
      } else {
        kc::rmsnorm_backward<T, G>(
            this->stream(stream), rows_of(d_y), pointer<T>(x.data), pointer<T>(norm.weight),
            statistics, pointer<T>(d_y.data), pointer<T>(d_residual), pointer<T>(d_x.data),
            pointer<G>(d_weight.data), scratch, x.stride, norm.offset, store(adds));
      }
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
