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

#include "profiles/gpu_params.h"

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
