// The cost parameters of a GPU as fields, for --set and inspect.
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

/// Where each of those values comes from, by path. `nccl` is GpuCosts::nccl.
Origins origins_of(const GpuCost& cost, const Sourced<NcclTable>& nccl);

/// The rates that the cost functions take are those of the GPU as it is now, --set included.
void follow_gpu(GpuCost& cost, const Gpu& gpu);

}  // namespace shardwright::profiles
