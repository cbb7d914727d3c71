// SPDX-License-Identifier: Apache-2.0
// The cost parameters of a GPU as fields: for --set, inspect, calibration and gpu_cost.json.
//
// Each struct of gpu_params.h is described once, with the ranges that are accepted and, of values
// that measurements can move, what is believed of them beforehand (Belief of fields.h). Spreads are
// what the same value differs by between the GPUs of profiles/data/fitted/gpu_cost.json.
#pragma once

#include "profiles/fields.h"
#include "profiles/gpu_cost.h"
#include "sim/core/cluster.h"

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
