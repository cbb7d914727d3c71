#include "sim/calibrate/fit_group.h"

#include <fmt/core.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "sim/calibrate/group_errors.h"
#include "sim/calibrate/lad.h"
#include "sim/calibrate/row_time.h"
#include "sim/calibrate/rows.h"
#include "sim/fit/held_out.h"

namespace shardwright::sim {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;
using profiles::CostGroup;
using profiles::MeasuredRow;
using profiles::Profile;

constexpr double kWidest = 0.5;          // of what is believed beforehand, to count as determined
constexpr double kSeen = 1e-3;           // a derivative below is none
constexpr double kAssumedNoise = 0.015;  // to begin with; the fit then knows better
constexpr double kMedianOverMean = 1.2533;  // standard error of a median over that of a mean
constexpr double kBelievedFreedom = 2;      // degrees of freedom of what is believed of errors
constexpr double kDepends = 0.05;           // a derivative that a prediction rests on
constexpr double kUnknownSpread = 0.1;      // where nothing was timed three times
constexpr double kBorrowed = 30;            // timings that the usual spread counts as
constexpr std::size_t kFewTargets = 10;

using Indices = std::vector<std::size_t>;
using Vector = std::vector<double>;

Eigen::Map<const VectorXd> mapped(const Vector& x) {
  return {x.data(), static_cast<Index>(x.size())};
}
Eigen::Map<const MatrixXd> mapped(const Vector& columns, std::size_t rows, std::size_t count) {
  return {columns.data(), static_cast<Index>(rows), static_cast<Index>(count)};
}

double log_error(const RowTimes& times, const Target& target) {
  double predicted = times.seconds(target.row);
  if (target.ratio) predicted /= times.alone_s(target.row);
  // What a profile cannot do at all, such as a collective between nodes that are not linked, is as
  // wrong as can be.
  if (!(predicted < 1e6)) predicted = 1e6;
  return std::log(std::max(predicted, 1e-12) / target.measured);
}

class GroupProblem {
 public:
  GroupProblem(EditableProfile& profile, const std::vector<Adjustable>& values,
               const std::vector<Target>& targets, const Sharing& sharing)
      : profile_(profile), values_(values), targets_(targets), sharing_(sharing) {
    for (const Adjustable& value : values) {
      numbers_.push_back(profile.find(value.path));
      base_.push_back(*numbers_.back());
    }
    for (std::size_t i = 0; i < targets.size(); ++i) all_rows_.push_back(i);
  }

  /// Residuals of `rows` as a function of the values of `free`.
  LadProblem problem(const Indices& free, const Indices& rows) const {
    LadProblem problem;
    for (const std::size_t j : free) {
      const Adjustable& value = values_[j];
      problem.parameters.push_back(
          {std::log(value.lower), std::log(value.upper), std::log(base_[j]), value.spread});
    }
    for (const std::size_t i : rows) problem.noise.push_back(targets_[i].noise);
    problem.residuals = [this, free, rows](const Vector& x) { return residuals(free, x, rows); };
    return problem;
  }

  Vector start(const Indices& free) const {
    Vector x;
    for (const std::size_t j : free) x.push_back(std::log(base_[j]));
    return x;
  }

  const Indices& all_rows() const { return all_rows_; }
  const std::vector<Adjustable>& values() const { return values_; }
  double base(std::size_t j) const { return base_[j]; }

  /// Leaves the profile with the values of `free` at x.
  void apply(const Indices& free, const Vector& x) const {
    for (std::size_t j = 0; j < numbers_.size(); ++j) *numbers_[j] = base_[j];
    for (std::size_t j = 0; j < free.size(); ++j) {
      const Adjustable& value = values_[free[j]];
      *numbers_[free[j]] = std::clamp(rounded(std::exp(x[j]), 7), value.lower, value.upper);
    }
  }

 private:
  Vector residuals(const Indices& free, const Vector& x, const Indices& rows) const {
    for (std::size_t j = 0; j < free.size(); ++j) {
      *numbers_[free[j]] = std::exp(x[j]);
    }
    const RowTimes times(profile_.profile(), sharing_);
    Vector result;
    for (const std::size_t i : rows) result.push_back(log_error(times, targets_[i]));
    for (const std::size_t j : free) *numbers_[j] = base_[j];
    return result;
  }

  EditableProfile& profile_;
  const std::vector<Adjustable>& values_;
  const std::vector<Target>& targets_;
  const Sharing& sharing_;
  std::vector<double*> numbers_;
  std::vector<double> base_;
  Indices all_rows_;
};

MatrixXd columns(const MatrixXd& matrix, const Indices& which) {
  MatrixXd result(matrix.rows(), static_cast<Index>(which.size()));
  for (std::size_t j = 0; j < which.size(); ++j) {
    result.col(static_cast<Index>(j)) = matrix.col(static_cast<Index>(which[j]));
  }
  return result;
}

/// Of the values with a good part in `direction`, the one of the highest rank.
std::size_t who_yields(const VectorXd& direction, const Indices& free,
                       const std::vector<Adjustable>& values) {
  const double most = direction.cwiseAbs().maxCoeff();
  std::size_t yields = 0;
  int rank = -1;
  for (std::size_t j = 0; j < free.size(); ++j) {
    if (std::abs(direction[static_cast<Index>(j)]) < 0.3 * most) continue;
    if (values[free[j]].rank > rank) {
      rank = values[free[j]].rank;
      yields = j;
    }
  }
  return yields;
}

/// Freezes values until the rows determine every direction of those that are left.
/// `slopes`: d residual / d value over the rows' noise.
void freeze_undetermined(const MatrixXd& slopes, const std::vector<Adjustable>& values,
                         Indices& free) {
  while (!free.empty()) {
    MatrixXd scaled = columns(slopes, free);
    for (std::size_t j = 0; j < free.size(); ++j) {
      scaled.col(static_cast<Index>(j)) *= values[free[j]].spread;
    }
    const Eigen::SelfAdjointEigenSolver<MatrixXd> eigen(scaled.transpose() * scaled);
    const bool too_many = free.size() > static_cast<std::size_t>(slopes.rows());
    if (!too_many && eigen.eigenvalues()[0] * kWidest * kWidest >= 1) return;
    free.erase(free.begin() +
               static_cast<std::ptrdiff_t>(who_yields(eigen.eigenvectors().col(0), free, values)));
  }
}

/// Frozen values that the rows see and that leave doubt about the free ones.
Indices others(const Indices& free, const std::vector<bool>& seen,
               const std::vector<Adjustable>& values) {
  Indices result;
  for (std::size_t j = 0; j < seen.size(); ++j) {
    if (seen[j] && !values[j].relative && std::find(free.begin(), free.end(), j) == free.end())
      result.push_back(j);
  }
  return result;
}

/// Covariance of the free values: of the fit, and by doubt about the frozen ones.
MatrixXd total_covariance(const LadFit& fit, const MatrixXd& all_slopes, const Indices& free,
                          const Indices& frozen, const std::vector<Adjustable>& values) {
  MatrixXd total = mapped(fit.covariance, free.size(), free.size());
  if (frozen.empty()) return total;
  const VectorXd weights = mapped(fit.scale).cwiseInverse().cwiseAbs2();
  const MatrixXd own = columns(all_slopes, free);
  const MatrixXd other = columns(all_slopes, frozen);
  MatrixXd information = own.transpose() * weights.asDiagonal() * own;
  information.diagonal().array() += 1e-12;
  const MatrixXd gain = information.ldlt().solve(own.transpose() * weights.asDiagonal() * other);
  VectorXd variances(static_cast<Index>(frozen.size()));
  for (std::size_t j = 0; j < frozen.size(); ++j) {
    variances[static_cast<Index>(j)] = values[frozen[j]].spread * values[frozen[j]].spread;
  }
  total += gain * variances.asDiagonal() * gain.transpose();
  return total;
}

/// The better of the fits from the profile's values and, for products, from hard and soft waves:
/// two valleys of one objective.
LadFit fit_from_starts(const GroupProblem& problem, const Indices& free) {
  const LadProblem lad = problem.problem(free, problem.all_rows());
  const Vector start = problem.start(free);
  LadFit best = fit_lad(lad, start);
  for (std::size_t j = 0; j < free.size(); ++j) {
    if (problem.values()[free[j]].path != "cost.gemm.w") continue;
    Vector other = best.x;
    other[j] = std::log(std::exp(best.x[j]) > 0.5 ? 0.2 : 0.9);
    LadFit fit = fit_lad(lad, other);
    if (mapped(fit.residuals).lpNorm<1>() < 0.999 * mapped(best.residuals).lpNorm<1>())
      best = std::move(fit);
  }
  return best;
}

/// How far the free values go when the frozen ones may move too, held by belief alone: what the
/// slopes at one point do not show of formulas with corners.
VectorXd moved_by_frozen(const GroupProblem& problem, const LadFit& fit, const Indices& free,
                         const Indices& frozen) {
  Indices both = free;
  both.insert(both.end(), frozen.begin(), frozen.end());
  Vector start = problem.start(both);
  std::copy(fit.x.begin(), fit.x.end(), start.begin());
  const LadFit all = fit_lad(problem.problem(both, problem.all_rows()), start);
  return mapped(all.x).head(static_cast<Index>(free.size())) - mapped(fit.x);
}

/// The value whose doubt is the largest part of what is believed; none: all are within. A value of
/// rank 0 carries the level of its rows, so it is judged by them alone (`own`): what frozen values
/// leave open about it widens its interval, but the rows are not predicted wrong for that.
std::optional<std::size_t> too_wide(const MatrixXd& covariance, const MatrixXd& own,
                                    const Indices& free, const std::vector<Adjustable>& values) {
  std::optional<std::size_t> worst;
  double most = kWidest;
  int rank = -1;
  for (std::size_t j = 0; j < free.size(); ++j) {
    const auto at = static_cast<Index>(j);
    const Adjustable& value = values[free[j]];
    const double variance = value.rank == 0 ? own(at, at) : covariance(at, at);
    const double share = std::sqrt(variance) / value.spread;
    if (!(share <= kWidest) && (values[free[j]].rank > rank || share > most)) {
      most = std::max(most, share);
      rank = value.rank;
      worst = j;
    }
  }
  return worst;
}

std::uint32_t fold_of_target(const Target& target, std::uint32_t folds) {
  const Work& w = target.row.operation.work;
  return fold_of(
      {w.m, w.n, w.k, w.bytes, target.row.operation.ranks,
       static_cast<std::int64_t>(target.row.operation.op), static_cast<std::int64_t>(w.backward)},
      folds);
}

/// Of the free values those that the rows of `training` determine by themselves.
Indices determined_by(const MatrixXd& standardized, const std::vector<Adjustable>& values,
                      const Indices& free, const Indices& training) {
  MatrixXd slopes(static_cast<Index>(training.size()), standardized.cols());
  for (std::size_t i = 0; i < training.size(); ++i) {
    slopes.row(static_cast<Index>(i)) = standardized.row(static_cast<Index>(training[i]));
  }
  Indices left = free;
  freeze_undetermined(slopes, values, left);
  return left;
}

bool rests_on_others(const MatrixXd& slopes, std::size_t row, const Indices& free,
                     const Indices& known) {
  return std::any_of(free.begin(), free.end(), [&](std::size_t j) {
    return std::abs(slopes(static_cast<Index>(row), static_cast<Index>(j))) >= kDepends &&
           std::find(known.begin(), known.end(), j) == known.end();
  });
}

/// NaN for rows that alone determine a value: nothing can be held against them.
Vector held_out(const GroupProblem& problem, const Indices& free, const LadFit& full,
                const MatrixXd& slopes, const MatrixXd& standardized,
                const std::vector<Target>& targets) {
  const std::size_t n = targets.size();
  const bool singly = n <= kFewTargets;
  const auto folds = singly ? static_cast<std::uint32_t>(n) : kFolds;
  Vector result = full.residuals;
  for (std::uint32_t out = 0; out < folds; ++out) {
    Indices training, left;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t fold =
          singly ? static_cast<std::uint32_t>(i) : fold_of_target(targets[i], folds);
      (fold == out ? left : training).push_back(i);
    }
    if (left.empty()) continue;
    if (training.empty()) {
      std::fill(result.begin(), result.end(), std::nan(""));
      continue;
    }
    const LadFit fit = fit_lad(problem.problem(free, training), full.x);
    const Indices known = determined_by(standardized, problem.values(), free, training);
    const Vector residuals = problem.problem(free, left).residuals(fit.x);
    for (std::size_t i = 0; i < left.size(); ++i) {
      result[left[i]] = rests_on_others(slopes, left[i], free, known) ? std::nan("") : residuals[i];
    }
  }
  return result;
}

std::string why_frozen(const Adjustable& value, std::int64_t rows) {
  if (rows == 0) return "no measurement depends on it";
  return value.rank == 0 ? "the measurements leave it too wide"
                         : "the measurements cannot tell it from other values";
}

}  // namespace

std::vector<Target> targets_of(const std::vector<MeasuredRow>& rows, CostGroup group) {
  // Alone and contended rows of equal work, by what they are.
  std::map<std::string, const MeasuredRow*> alone;
  const auto name = [](const MeasuredRow& row) {
    const auto& o = row.operation;
    return fmt::format("{} {} {} {} {} {} {} {}", describe(row), o.work.dtype_bytes, o.work.kernels,
                       static_cast<int>(o.op), static_cast<int>(o.work.memory_class), o.work.causal,
                       row.lowered, o.sharers);
  };
  for (const MeasuredRow& row : rows) {
    if (row.operation.contended < kContended) alone[name(row)] = &row;
  }
  // The spread of a handful of timings says little by itself: it leans on that of all rows.
  std::vector<double> spreads;
  for (const MeasuredRow& row : rows) {
    if (row.count >= 3) spreads.push_back(row.spread);
  }
  const double usual = spreads.empty() ? kUnknownSpread : quantiles_of(std::move(spreads))[2];
  const auto own_noise = [usual](const MeasuredRow& row) {
    const auto n = static_cast<double>(row.count);
    const double variance =
        (n * row.spread * row.spread + kBorrowed * usual * usual) / (n + kBorrowed);
    return kMedianOverMean * std::sqrt(variance / n);
  };
  std::vector<Target> targets;
  for (const MeasuredRow& row : rows) {
    if (!(row.operation.seconds > 0) || group_of(row) == CostGroup::kHost) continue;
    const bool contended = row.operation.contended >= kContended;
    const auto pair = contended ? alone.find(name(row)) : alone.end();
    if (group == CostGroup::kContention) {
      if (pair == alone.end()) continue;
      targets.push_back({row, row.operation.seconds / pair->second->operation.seconds, true,
                         std::hypot(own_noise(row), own_noise(*pair->second))});
    } else if (group_of(row) == group && pair == alone.end()) {
      targets.push_back({row, row.operation.seconds, false, own_noise(row)});
    }
  }
  return targets;
}

Vector log_errors(const Profile& profile, const std::vector<Target>& targets,
                  const Sharing& sharing) {
  const RowTimes times(profile, sharing);
  Vector errors;
  for (const Target& target : targets) errors.push_back(log_error(times, target));
  return errors;
}

GroupFit fit_group(EditableProfile& profile, CostGroup group, const std::vector<Target>& targets,
                   const Sharing& sharing, const FitOptions& options) {
  GroupFit result;
  result.group = result.errors.group = group;
  result.adjustable = adjustable_values(profile.profile(), group);
  const std::vector<Adjustable>& values = result.adjustable;
  const std::size_t count = values.size();
  const GroupProblem problem(profile, values, targets, sharing);
  Indices every;
  for (std::size_t j = 0; j < count; ++j) every.push_back(j);
  const Vector base = problem.start(every);
  const LadProblem whole = problem.problem(every, problem.all_rows());
  const Vector before = whole.residuals(base);

  MatrixXd slopes = mapped(jacobian_of(whole, base), targets.size(), count);
  std::vector<bool> seen(count, false);
  std::vector<std::int64_t> rows_seeing(count, 0);
  for (std::size_t j = 0; j < count; ++j) {
    for (Index i = 0; i < slopes.rows(); ++i) {
      if (std::abs(slopes(i, static_cast<Index>(j))) > kSeen) ++rows_seeing[j];
    }
    seen[j] = rows_seeing[j] > 0;
  }
  Indices free;
  for (std::size_t j = 0; j < count; ++j) {
    if (seen[j]) free.push_back(j);
  }
  MatrixXd standardized = slopes;
  for (Index i = 0; i < slopes.rows(); ++i) {
    standardized.row(i) /= std::hypot(targets[static_cast<std::size_t>(i)].noise, kAssumedNoise);
  }
  freeze_undetermined(standardized, values, free);

  LadFit fit;
  MatrixXd covariance;
  for (;;) {
    fit = fit_from_starts(problem, free);
    Vector at = base;
    for (std::size_t j = 0; j < free.size(); ++j) at[free[j]] = fit.x[j];
    slopes = mapped(jacobian_of(whole, at), targets.size(), count);
    covariance = total_covariance(fit, slopes, free, others(free, seen, values), values);
    const Indices frozen = others(free, seen, values);
    if (!frozen.empty() && !free.empty()) {
      covariance.diagonal() += moved_by_frozen(problem, fit, free, frozen).cwiseAbs2();
    }
    const auto worst =
        too_wide(covariance, mapped(fit.covariance, free.size(), free.size()), free, values);
    if (!worst) break;
    free.erase(free.begin() + static_cast<std::ptrdiff_t>(*worst));
  }

  const double beyond = static_cast<double>(targets.size()) - static_cast<double>(free.size());
  const double quantile = student_975(beyond + kBelievedFreedom);
  const Vector out = options.held_out && !targets.empty()
                         ? held_out(problem, free, fit, slopes, standardized, targets)
                         : fit.residuals;
  problem.apply(free, fit.x);
  for (std::size_t j = 0; j < count; ++j) {
    FittedValue& value = result.values.emplace_back();
    value.path = values[j].path;
    value.before = problem.base(j);
    value.rows = rows_seeing[j];
    value.after = value.low = value.high = *profile.find(value.path);
    const auto at = std::find(free.begin(), free.end(), j);
    value.determined = at != free.end();
    if (!value.determined) {
      value.why_not = why_frozen(values[j], rows_seeing[j]);
      continue;
    }
    const auto place = static_cast<Index>(at - free.begin());
    const double width = quantile * std::sqrt(covariance(place, place));
    value.low = std::max(value.after * std::exp(-width), values[j].lower);
    value.high = std::min(value.after * std::exp(width), values[j].upper);
  }
  if (!targets.empty()) {
    const double typical = robust_deviation(fit.residuals, free.size());
    if (targets.size() > free.size() + 1) result.noise = std::max(typical, 0.005);
  }
  fill_errors(targets, before, fit.residuals, out, options.held_out ? options.level : 0,
              result.errors);
  for (const Target& target : targets) {
    result.seconds += target.row.operation.seconds * static_cast<double>(target.row.count);
  }

  MatrixXd precision = MatrixXd::Zero(static_cast<Index>(count), static_cast<Index>(count));
  for (std::size_t j = 0; j < count; ++j) {
    precision(static_cast<Index>(j), static_cast<Index>(j)) =
        1 / (values[j].spread * values[j].spread);
  }
  for (Index i = 0; i < slopes.rows(); ++i) {
    const VectorXd row =
        slopes.row(i).transpose() / std::max(fit.scale[static_cast<std::size_t>(i)], 0.005);
    precision += row * row.transpose();
  }
  if (count > 0) {
    const MatrixXd posterior = precision.inverse();
    result.posterior.assign(posterior.data(), posterior.data() + posterior.size());
  }
  return result;
}

}  // namespace shardwright::sim
