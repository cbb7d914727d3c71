// SPDX-License-Identifier: Apache-2.0
// The records that CUPTI leaves in a buffer, as plain activities.
//
// The structs of CUPTI grow a version with most toolkits; which ones are meant is decided here and
// nowhere else, by CUPTI_API_VERSION. Compiled and tested with CUDA 13; the names for CUDA 12 are
// taken from its headers' documentation.
#pragma once

#include <cupti.h>

#include <cstddef>
#include <cstdint>

#include "exec/trace/activity.h"

namespace shardwright::exec {

#if CUPTI_API_VERSION >= 130000
using CuptiKernel = CUpti_ActivityKernel10;
using CuptiCopy = CUpti_ActivityMemcpy6;
using CuptiPeerCopy = CUpti_ActivityMemcpyPtoP4;
using CuptiSet = CUpti_ActivityMemset4;
using CuptiOverhead = CUpti_ActivityOverhead3;
using CuptiWait = CUpti_ActivitySynchronization2;
#else
using CuptiKernel = CUpti_ActivityKernel9;
using CuptiCopy = CUpti_ActivityMemcpy5;
using CuptiPeerCopy = CUpti_ActivityMemcpyPtoP4;
using CuptiSet = CUpti_ActivityMemset4;
using CuptiOverhead = CUpti_ActivityOverhead2;
using CuptiWait = CUpti_ActivitySynchronization;
#endif

/// The external ids that this project pushes are of this kind.
inline constexpr CUpti_ExternalCorrelationKind kExternalKind =
    CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

/// Appends what `bytes` bytes of a buffer hold.
void read_records(std::uint8_t* buffer, std::size_t bytes, ActivityLog& log);

}  // namespace shardwright::exec
