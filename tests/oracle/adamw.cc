// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/adamw.h"

#include <cmath>

namespace shardwright::kernels::reference {

void adamw(const AdamW& o, const std::vector<double>& gradient, std::vector<double>& parameter,
           std::vector<double>& m, std::vector<double>& v) {
  const auto t = static_cast<double>(o.step);
  for (std::size_t i = 0; i < parameter.size(); ++i) {
    const double g = o.grad_scale * gradient[i];
    m[i] = o.beta1 * m[i] + (1.0 - o.beta1) * g;
    v[i] = o.beta2 * v[i] + (1.0 - o.beta2) * g * g;
    const double m_hat = m[i] / (1.0 - std::pow(o.beta1, t));
    const double v_hat = v[i] / (1.0 - std::pow(o.beta2, t));
    parameter[i] -= o.lr * o.weight_decay * parameter[i];
    parameter[i] -= o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
  }
}

}  // namespace shardwright::kernels::reference
