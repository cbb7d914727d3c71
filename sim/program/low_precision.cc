// SPDX-License-Identifier: Apache-2.0
#include "sim/program/low_precision.h"

#include <utility>

namespace shardwright::sim {

namespace {

struct Cast {
  double bytes = 0;  // an element, both directions
  int kernels = 1;
  double gathered_bytes = 0;  // of them and of a transpose, by each rank where parts are gathered
  int for_all = 0;            // of the kernels, those that serve all experts at once
};

bool narrow(const Plan& plan) {
  return plan.numerics.precision == Precision::kFp8 || plan.numerics.precision == Precision::kNvfp4;
}

/// One a tensor.
bool one_fp8_scale(const Plan& plan) {
  return fp8_scaled(plan, Fp8Recipe::kDelayed) || fp8_scaled(plan, Fp8Recipe::kTensorwise);
}

/// Of an input or a gradient: read in bf16, written along rows and along columns, the latter by
/// a transpose where one scale serves both and products want it.
Cast cast_of(const Plan& plan, bool transposes) {
  if (plan.numerics.precision == Precision::kNvfp4) return {2 + 4 + 2 * 0.5625, 4};
  switch (fp8_recipe_of(plan)) {
    case Fp8Recipe::kDelayed:
      return transposes ? Cast{2 + 2, 1, 2} : Cast{2 + 1, 1};
    case Fp8Recipe::kTensorwise:
      return transposes ? Cast{2 + 2 + 2, 5, 2} : Cast{2 + 2 + 1, 4};
    case Fp8Recipe::kRowwise:
      return {4 + 4 + 2, 4};
    case Fp8Recipe::kBlock:
      return {2 + 2 * (1 + 4.0 / 128), 1};
    case Fp8Recipe::kMxfp8:
      break;
  }
  return {2 + 2 * (1 + 1.0 / 32), 3, 0, 2};
}

/// torchao without a compiler casts by many kernels, and casts an input again for its weight
/// gradient, both of whose operands are copied into the other layout.
bool eager_casts(const ProgramWriter& w) {
  return w.stack().parallel.fp8.eager_cast_bytes > 0 &&
         fp8_scaled(w.plan(), Fp8Recipe::kTensorwise);
}

/// Casts of experts' rows that are launched one by one are short: they keep the stack's.
double cast_efficiency(const ProgramWriter& w, const Op& product) {
  const ParallelSoftware& parallel = w.stack().parallel;
  const bool transposed =
      one_fp8_scale(w.plan()) && w.transposes_fp8() && product.work.kernels <= 1;
  const double known = fp8_scaled(w.plan(), Fp8Recipe::kMxfp8)
                           ? parallel.fp8.mxfp8_cast_efficiency
                           : (transposed ? parallel.fp8.cast_transpose_efficiency : 0);
  return known > 0 ? known : parallel.cast_efficiency;
}

Op eager_cast(const ProgramWriter& w, double elements, double copied_elements) {
  const Fp8Software& fp8 = w.stack().parallel.fp8;
  constexpr double kCopied = 2;  // bytes: one read, one written
  const int copies = copied_elements > 0 ? 2 : 0;
  return w.memory(OpKind::kQuantize, fp8.eager_cast_bytes * elements + kCopied * copied_elements,
                  fp8.eager_cast_kernels + copies, w.stack().copies.cast);
}

/// The input of a product of forward, or the gradient of an output. `gathered`: every tensor rank
/// casts its part of it before that travels; a transpose is made of what arrives.
Op cast_before(const ProgramWriter& w, const Op& product, bool gathered) {
  const Cast cast = cast_of(w.plan(), w.transposes_fp8());
  const double elements = f(product.work.m) * f(product.work.k) * f(product.work.groups);
  if (eager_casts(w)) {
    Op op = eager_cast(w, elements, 0);
    op.joins = product.joins;
    return op;
  }
  const double own = cast.bytes - cast.gathered_bytes / 2;
  const double bytes = gathered ? own / f(w.shape().tp) + cast.gathered_bytes : cast.bytes;
  Op op = w.memory(OpKind::kQuantize, elements * bytes, cast.kernels, cast_efficiency(w, product));
  // Each expert's rows are cast by kernels of their own where products are.
  if (product.work.kernels > 1) {
    op.work.kernels = static_cast<std::uint16_t>(op.work.kernels * product.work.kernels);
    op.work.starts = (cast.kernels - cast.for_all) * product.work.kernels + cast.for_all;
  }
  op.dynamic = product.dynamic;
  op.work.groups = product.work.kernels > 1 ? product.work.groups : 1;
  op.joins = product.joins;
  return op;
}

/// Of one operand, as kernels/cuda/fp8.cu casts it: a pass for the largest magnitudes, but for
/// blocks, then one that writes it along its rows, its columns or both, and what clears and
/// finishes scales.
Cast own_cast_of(const Plan& plan, bool both_ways) {
  const int ways = both_ways ? 2 : 1;
  if (fp8_scaled(plan, Fp8Recipe::kMxfp8)) return {2 + ways * (1 + 1.0 / 32), 1 + ways};
  return {2 + 2 + 1.0 * ways, fp8_scaled(plan, Fp8Recipe::kRowwise) ? 2 + 2 * ways : 3};
}

/// Both operands of a product (exec/model_ops.h). The gradient of an output is cast once, for
/// its two products, of which the input's is the first.
Op cast_operands(const ProgramWriter& w, const Op& product) {
  const Plan& plan = w.plan();
  const Work& work = product.work;
  // With one scale a tensor some GPUs multiply the same codes along either dimension.
  const bool turns = !w.transposes_fp8() && fp8_scaled(plan, Fp8Recipe::kTensorwise);
  const bool shared = product.kind == OpKind::kInputGradient;
  const Cast left = own_cast_of(plan, shared && !turns);
  const Cast right = own_cast_of(plan, false);
  double bytes = right.bytes * f(work.n) * f(work.k);
  int kernels = right.kernels;
  if (product.kind != OpKind::kWeightGradient) {
    bytes += left.bytes * f(work.m) * f(work.k);
    kernels += left.kernels;
  }
  Op op = w.memory(OpKind::kQuantize, f(work.groups) * bytes, kernels * work.kernels,
                   cast_efficiency(w, product));
  op.in[0] = product.in[0];
  op.of = product.kind;
  return op;
}

/// TransformerEngine's norms write fp8 themselves where the scale is known before
/// (pytorch/module/layernorm_linear.py); what is left to make is its transpose, if products want
/// it.
void cast_by_norm(const ProgramWriter& w, const Op& product, bool gathered, Op& norm, Op& cast) {
  const double elements = f(product.work.m) * f(product.work.k);
  const double own = gathered ? elements / f(w.shape().tp) : elements;
  norm.work.bytes -= static_cast<Bytes>(own);  // one byte written in place of two
  cast.work.bytes = w.transposes_fp8() ? static_cast<Bytes>(2 * elements) : 0;
}

bool norms_cast(const ProgramWriter& w) {
  return fp8_scaled(w.plan(), Fp8Recipe::kDelayed) && w.stack().parallel.fp8.norms_cast;
}

double product_share(const ProgramWriter& w) {
  if (fp8_scaled(w.plan(), Fp8Recipe::kMxfp8)) return w.mxfp8_gemm_share();
  return fp8_scaled(w.plan(), Fp8Recipe::kRowwise) ? w.stack().parallel.fp8.rowwise_gemm_share : 1;
}

/// Scales of whole rows are found after the gather (torchao).
bool gathers_narrow(const Plan& plan) {
  return !fp8_scaled(plan, Fp8Recipe::kRowwise);
}

/// Userbuffers reduce by the kernels of a pipeline, which take outputs in fp8 where their scale is
/// known before, in the settings for fp8 with delayed scaling on Hopper; in all others for fp8 the
/// ranks exchange their pieces (NVIDIA/NeMo @0594a70 recipes/tp_overlap_configs/userbuffers.py,
/// Megatron-Bridge @0685ff5 training/comm_overlap.py; fp8_buf in TransformerEngine's base.py).
void reduce_narrow(const ProgramWriter& w, CollectiveWork& sum) {
  if (sum.overlap != Overlap::kInside || sum.kind != Collective::kReduceScatter ||
      w.tensor_overlap() != TensorOverlap::kUserbuffers)
    return;
  const bool known = fp8_scaled(w.plan(), Fp8Recipe::kDelayed) && w.transposes_fp8();
  if (known) {
    sum.bytes *= saved_input_bytes(w.plan()) / f(w.width());
  } else {
    sum.exchanged = true;
  }
}

bool same_input(const Op& a, const Op& b) {
  return a.work.m == b.work.m && a.work.k == b.work.k && a.work.groups == b.work.groups;
}

}  // namespace

Fp8Recipe fp8_recipe_of(const Plan& plan) {
  return plan.numerics.fp8_recipe.value_or(Fp8Recipe::kTensorwise);
}

bool fp8_scaled(const Plan& plan, Fp8Recipe recipe) {
  return plan.numerics.precision == Precision::kFp8 && fp8_recipe_of(plan) == recipe;
}

bool casts_for_each_product(const Stack& stack, const Plan& plan) {
  if (!stack.parallel.fp8.casts_for_each_product || plan.numerics.fp8_params) return false;
  return fp8_scaled(plan, Fp8Recipe::kTensorwise) || fp8_scaled(plan, Fp8Recipe::kRowwise) ||
         fp8_scaled(plan, Fp8Recipe::kMxfp8);
}

void lower_precision(const ProgramWriter& writer, Ops& list) {
  if (!narrow(writer.plan())) return;
  Ops result;
  const Op* cast = nullptr;    // the product just before whose input was cast
  bool arrives = false;        // what the next product reads is being gathered
  bool gathered = false;       // by the operation just before
  std::size_t after_norm = 0;  // of the result, one beyond a norm that the next product reads
  Op written;                  // the operands of a cast that does not work in place
  for (Op& op : list) {
    const bool gathers = op.collective.bytes > 0 && gathers_narrow(writer.plan()) &&
                         op.collective.group == CommGroup::kTensor &&
                         op.collective.pattern == Pattern::kCollective &&
                         op.collective.kind == Collective::kAllGather;
    const double narrower = saved_input_bytes(writer.plan()) / f(writer.width());
    if (gathers) op.collective.bytes *= narrower;
    if (op.kind == OpKind::kCopyOut && gathered) {  // puts what was gathered into its places
      op.work.bytes = static_cast<Bytes>(f(op.work.bytes) * narrower);
    }
    gathered = gathers;
    if (op.kind == OpKind::kQuantize && op.work.kind == WorkKind::kNone) {
      written = op;
      continue;
    }
    if (gathers && op.collective.overlap != Overlap::kFollowing) arrives = true;
    if (op.work.kind != WorkKind::kGemm || op.keeps_high_precision) {
      cast = nullptr;  // what follows reads something else, though it may have the same size
      result.push_back(op);
      if (op.kind == OpKind::kNorm) {
        after_norm = result.size();
      } else if (op.work.kind != WorkKind::kNone) {
        after_norm = 0;
      }
      continue;
    }
    op.work.precision = writer.plan().numerics.precision;
    op.work.efficiency *= product_share(writer);
    if (casts_for_each_product(writer.stack(), writer.plan())) {
      result.push_back(cast_operands(writer, op));
      result.push_back(op);
      continue;
    }
    reduce_narrow(writer, op.collective);
    const bool forward = op.kind != OpKind::kInputGradient;
    const bool reads_again = op.narrow_input || op.kind == OpKind::kWeightGradient ||
                             (forward && cast != nullptr && same_input(*cast, op));
    if (op.kind == OpKind::kWeightGradient && eager_casts(writer)) {
      const double inputs = f(op.work.n) * f(op.work.k), gradients = f(op.work.m) * f(op.work.k);
      result.push_back(eager_cast(writer, inputs, inputs + gradients));
    }
    if (op.kind == OpKind::kWeightGradient && !eager_casts(writer)) op.narrow_input = true;
    if (!reads_again) {
      Op quantize = cast_before(writer, op, arrives);
      if (after_norm > 0 && forward && norms_cast(writer))
        cast_by_norm(writer, op, arrives, result[after_norm - 1], quantize);
      if (written.out[0]) {
        quantize.in[0] = written.in[0];
        quantize.out[0] = written.out[0];
        written = {};
      } else {
        quantize.in[0] = op.in[0];
      }
      if (quantize.work.bytes > 0) result.push_back(quantize);
      cast = &op;
      arrives = false;
    }
    after_norm = 0;
    result.push_back(op);
  }
  list = std::move(result);
}

bool transposes_fp8(const Stack& stack, const Gpu& gpu) {
  return !stack.parallel.fp8.reads_both_layouts || !gpu.fp8_any_layout;
}

bool gathers_narrow_weights(const Plan& plan) {
  return plan.numerics.fp8_params && fp8_recipe_of(plan) != Fp8Recipe::kMxfp8;
}

double weight_cast_bytes(const Plan& plan, bool transposes) {
  if (!narrow(plan) || gathers_narrow_weights(plan)) return 0;
  return cast_of(plan, transposes).bytes;
}

double narrow_bytes(Precision precision) {
  if (precision == Precision::kNvfp4) return 0.5625;
  return precision == Precision::kFp8 ? 1 : 2;
}

double saved_input_bytes(const Plan& plan) {
  return narrow_bytes(plan.numerics.precision);
}

double weight_bytes(const Plan& plan, const Stack& stack, const Gpu& gpu) {
  constexpr double kWide = 2;
  if (!narrow(plan) || casts_for_each_product(stack, plan)) return kWide;
  const bool multiplies_both_ways = gpu.architecture == "blackwell";
  const double copies =
      (one_fp8_scale(plan) && multiplies_both_ways ? 1 : 2) * saved_input_bytes(plan);
  return plan.numerics.fp8_params ? copies : kWide + copies;
}

double peak_flops(const Gpu& gpu, Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      // The data sheet's peak stands for its fp16 where there is no bf16.
      return gpu.architecture == "volta" ? 0 : gpu.peak_bf16_flops;
    case Precision::kFp16:
      return gpu.peak_fp16_flops;
    case Precision::kFp8:
      return gpu.peak_fp8_flops;
    case Precision::kNvfp4:
      break;
  }
  return gpu.peak_nvfp4_flops;
}

}  // namespace shardwright::sim
