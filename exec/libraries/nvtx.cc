// SPDX-License-Identifier: Apache-2.0
#include "exec/libraries/nvtx.h"

#include <nvtx3/nvToolsExt.h>

namespace shardwright::exec::libraries {
namespace {

class NvtxMarker final : public RangeMarker {
 public:
  void begin(const std::string& name) override { nvtxRangePushA(name.c_str()); }
  void end() override { nvtxRangePop(); }
};

}  // namespace

std::unique_ptr<RangeMarker> make_nvtx_marker() {
  return std::make_unique<NvtxMarker>();
}

}  // namespace shardwright::exec::libraries
