// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/minimize.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "sim/core/base/check.h"

namespace shardwright::sim {
namespace {

using Point = std::vector<double>;
using Objective = std::function<double(const Point&)>;

/// a + t (b - a)
Point along(const Point& a, const Point& b, double t) {
  Point result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] + t * (b[i] - a[i]);
  return result;
}

struct Vertex {
  Point at;
  double value;
};

/// One simplex from `start`; returns its best vertex.
Vertex nelder_mead(const Objective& f, const Vertex& start, double step, int& budget) {
  const std::size_t n = start.at.size();
  const double d = static_cast<double>(n);
  const double expand = 1 + 2 / d;
  const double contract = n == 1 ? 0.5 : 0.75 - 1 / (2 * d);
  const double shrink = n == 1 ? 0.5 : 1 - 1 / d;
  const auto evaluate = [&](Point at) {
    --budget;
    const double value = f(at);
    return Vertex{std::move(at), std::isfinite(value) ? value : 1e300};
  };
  std::vector<Vertex> simplex{start};
  for (std::size_t i = 0; i < n; ++i) {
    Point at = start.at;
    at[i] += step;
    simplex.push_back(evaluate(std::move(at)));
  }
  const auto better = [](const Vertex& a, const Vertex& b) { return a.value < b.value; };
  while (budget > 0) {
    std::stable_sort(simplex.begin(), simplex.end(), better);
    const Vertex& worst = simplex.back();
    double width = 0;
    for (std::size_t i = 0; i < n; ++i)
      width = std::max(width, std::abs(worst.at[i] - simplex.front().at[i]));
    if (width < 1e-5 && worst.value - simplex.front().value < 1e-9) break;
    Point centre(n, 0.0);
    for (std::size_t v = 0; v < n; ++v)
      for (std::size_t i = 0; i < n; ++i) centre[i] += simplex[v].at[i] / d;

    Vertex reflected = evaluate(along(centre, worst.at, -1));
    if (reflected.value < simplex.front().value) {
      Vertex expanded = evaluate(along(centre, worst.at, -expand));
      simplex.back() = better(expanded, reflected) ? std::move(expanded) : std::move(reflected);
      continue;
    }
    if (reflected.value < simplex[n - 1].value) {
      simplex.back() = std::move(reflected);
      continue;
    }
    const bool outside = reflected.value < worst.value;
    Vertex contracted = evaluate(along(centre, worst.at, outside ? -contract : contract));
    if (contracted.value < std::min(reflected.value, worst.value)) {
      simplex.back() = std::move(contracted);
      continue;
    }
    for (std::size_t v = 1; v <= n; ++v)
      simplex[v] = evaluate(along(simplex.front().at, simplex[v].at, shrink));
  }
  return *std::min_element(simplex.begin(), simplex.end(), better);
}

}  // namespace

Minimum minimize_positive(const std::function<double(const std::vector<double>&)>& f,
                          const std::vector<double>& start, MinimizeOptions options) {
  SHARDWRIGHT_CHECK(!start.empty() && options.max_evaluations > 0, "nothing to minimize");
  const auto exponential = [](const Point& logs) {
    Point values(logs.size());
    std::transform(logs.begin(), logs.end(), values.begin(), [](double x) { return std::exp(x); });
    return values;
  };
  const Objective in_logs = [&](const Point& logs) { return f(exponential(logs)); };
  Point logs(start.size());
  for (std::size_t i = 0; i < start.size(); ++i) {
    SHARDWRIGHT_CHECK(start[i] > 0, "parameter {} starts at {}", i, start[i]);
    logs[i] = std::log(start[i]);
  }
  int budget = options.max_evaluations;
  Vertex best{logs, in_logs(logs)};
  --budget;
  double step = options.first_step;
  int idle = 0;
  while (budget > 0 && idle < 3) {
    const Vertex next = nelder_mead(in_logs, best, step, budget);
    const bool helped = next.value < best.value * (1 - options.tolerance);
    if (next.value < best.value) best = next;
    idle = helped ? 0 : idle + 1;
    step = -0.7 * step;  // the next simplex points the other way and is smaller
    if (std::abs(step) < 0.02) step = options.first_step;
  }
  return {exponential(best.at), best.value, options.max_evaluations - budget};
}

}  // namespace shardwright::sim
