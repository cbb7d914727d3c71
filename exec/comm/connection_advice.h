// SPDX-License-Identifier: Apache-2.0
// What to try where ranks on GPUs do not reach each other, as the end of a sentence.
#pragma once

namespace shardwright::exec {

inline constexpr const char* kHowConnectionsFail =
    "where all ranks are alive, their GPUs or nodes do not reach each other: NCCL_DEBUG=WARN says "
    "what NCCL met, NCCL_P2P_DISABLE=1 goes around GPUs that cannot read each other (nvidia-smi "
    "topo -p2p r), NCCL_SOCKET_IFNAME and NCCL_IB_HCA name the network";

}  // namespace shardwright::exec
