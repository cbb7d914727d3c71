// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/simd/kernels.h"

namespace shardwright::kernels::host {

namespace baseline {
Kernels make_kernels(Isa isa);
}
#if defined(__x86_64__)
namespace avx2 {
Kernels make_kernels(Isa isa);
}
namespace avx512 {
Kernels make_kernels(Isa isa);
}
#endif

const Kernels& kernels_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) {
    static const Kernels kernels = avx512::make_kernels(isa);
    return kernels;
  }
  if (isa == Isa::kAvx2) {
    static const Kernels kernels = avx2::make_kernels(isa);
    return kernels;
  }
#endif
  static const Kernels kernels = baseline::make_kernels(Isa::kBaseline);
  return kernels;
}

}  // namespace shardwright::kernels::host
