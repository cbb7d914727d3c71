// SPDX-License-Identifier: Apache-2.0
// Reads profiles/data/fitted/gpu_cost.json: the cost-model parameters of every GPU kind.
//
// Schema "shardwright.gpu_cost/1.0". Each parameter set says where it comes from: fitted to
// published measurements by a command (with in-sample and held-out errors), taken from a
// publication, or borrowed from a GPU of the same architecture. `python3 -m profiles.research`
// rewrites the fitted sets and leaves the rest as it is. Reading is strict: unknown or missing
// keys, and values that make no sense, are errors that name the file and the path.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "profiles/fields.h"
#include "profiles/gpu_params.h"
#include "sim/core/cluster.h"

namespace shardwright {
class JsonReader;
}

namespace shardwright::profiles {

struct GpuFile;

/// Relative errors |predicted / measured - 1|, as fractions.
struct ErrorSummary {
  std::int64_t n = 0;
  double mape = 0;
  double median = 0;
  double p90 = 0;
};

/// Reads {"n", "mape", "median", "p90"}. Throws Error.
ErrorSummary read_errors(const JsonReader& parent, std::string_view key);

/// Where a set of parameters comes from.
struct Provenance {
  std::string source;       ///< publication or derivation, in words
  std::string confidence;   ///< fitted, published, analogue or estimate
  std::string analogue_of;  ///< id of the GPU whose fitted values are repeated here, or empty
  std::string command;      ///< what re-fits it; empty when nothing does
  std::string date;         ///< YYYY-MM-DD
  ErrorSummary in_sample;   ///< n = 0: not fitted here
  ErrorSummary held_out;
};

template <typename Params>
struct Sourced {
  Params values;
  Provenance provenance;
  std::map<std::string, Provenance> apart;  ///< of single values that something else fits, by key
};

struct GpuCost {
  Sourced<GpuRates> rates;
  Sourced<GemmParams> gemm;
  std::map<std::string, Sourced<AttentionParams>> attention;  ///< by kernel: fa2, fa3, cudnn
  Sourced<LowPrecisionParams> low_precision;
  Sourced<DispatchParams> dispatch;
  Sourced<ExchangeParams> exchange;
  Sourced<MemoryParams> memory;
  Sourced<CollectiveParams> collectives;
  Sourced<ContentionParams> contention;  ///< the same for all in the file; calibration sets it
};

struct GpuCosts {
  // Already copied into every GPU's.
  Sourced<NcclTable> nccl;
  Sourced<ContentionParams> contention;
  std::map<std::string, GpuCost> gpus;

  /// Throws Error that lists the known ids and the nearest one.
  const GpuCost& at(const std::string& id) const;
};

GpuCosts load_gpu_costs(const std::string& file);
/// The shipped file, `data_dir()`/fitted/gpu_cost.json.
GpuCosts load_gpu_costs();

/// A GPU's own, or those of the one that its file calls similar. Throws Error when it names none
/// that has any.
GpuCost cost_of(const GpuFile& gpu, const GpuCosts& costs);

}  // namespace shardwright::profiles

// The cost parameters of a GPU as fields: for --set, inspect, calibration and gpu_cost.json.
//
// Each struct of gpu_params.h is described once, with the ranges that are accepted and, of values
// that measurements can move, what is believed of them beforehand (Belief of fields.h). Spreads are
// what the same value differs by between the GPUs of profiles/data/fitted/gpu_cost.json.

namespace shardwright::profiles {

/// Adds the fields of `cost`: "gemm.e", "attention.fa2.forward_flops", "collectives.simple.hop_s".
/// Arrays over NCCL's protocols are three fields (.ll, .ll128, .simple), those over the number of
/// nodes two (.two_nodes, .more_nodes). Of the rates only hbm_efficiency is one, because the others
/// are fields of the GPU.
void describe(FieldList& fields, GpuCost& cost);

/// The values of one struct, as gpu_cost.json has them: arrays are whole there.
void describe(FieldList& fields, GpuRates& params);
void describe(FieldList& fields, GemmParams& params);
void describe(FieldList& fields, LowPrecisionParams& params);
void describe(FieldList& fields, DispatchParams& params);
void describe(FieldList& fields, ExchangeParams& params);
void describe(FieldList& fields, AttentionParams& params);
void describe(FieldList& fields, MemoryParams& params);
void describe(FieldList& fields, ContentionParams& params);
void describe(FieldList& fields, NcclTable& params);
/// Without `nccl`; those of NVLS only where params.nvls.
void describe(FieldList& fields, CollectiveParams& params);

/// Where each of those values comes from, by path. `nccl` is GpuCosts::nccl.
Origins origins_of(const GpuCost& cost, const Sourced<NcclTable>& nccl);

/// The rates that the cost functions take are those of the GPU as it is now, --set included.
void follow_gpu(GpuCost& cost, const Gpu& gpu);

}  // namespace shardwright::profiles
