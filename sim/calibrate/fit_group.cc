// SPDX-License-Identifier: Apache-2.0
// The order of things matters here, because each asks what the one before left open.
//
// Rows see a value where their derivative by it is not nothing. Of the values that are seen, those
// in undetermined directions are frozen before any fit (group_problem.h), by derivatives at the
// profile's own values and an assumed noise. The fit then knows the noise, and where it has gone
// the derivatives: values that turn out too wide are frozen one at a time, worst first, and the
// others fitted again without them. What frozen values leave open is added to the covariance of the
// free ones twice: by derivatives at the fit, and by how far the free ones really go when the
// frozen ones are fitted too, because the formulas have corners (minima over tiles, protocols).
// Errors that are reported are of rows that the fit had not seen (group_problem.h).
#include "sim/calibrate/fit_group.h"

#include <fmt/core.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <variant>

#include "sim/calibrate/group_problem.h"
#include "sim/core/base/numbers.h"
#include "sim/score/validation.h"

namespace shardwright::sim {

namespace {

using profiles::CostGroup;
using profiles::Field;

constexpr double kLeastValue = 1e-12, kMostValue = 1e19;

/// The set of attention parameters that the profile's stack runs.
std::string attention_kernel(const profiles::Profile& profile) {
  return profile.cost.attention.contains(profile.stack.attention_kernel)
             ? profile.stack.attention_kernel
             : "fa2";
}

/// No kernel is faster than its GPU's peak, whatever a few small products seem to say: beyond it a
/// fit extrapolates to speeds that there are not. The peak of a processor is itself an estimate.
double most_of(const Field& field, double value, const Gpu& gpu) {
  const bool share_of_peak = field.path == "cost.gemm.e" && !gpu.is_processor();
  return share_of_peak ? std::max(1.0, value) : field.accepted.max;
}

}  // namespace

EditableProfile::EditableProfile(profiles::Profile profile)
    : profile_(std::move(profile)), fields_(profiles::fields_of(profile_)) {}

double* EditableProfile::find(const std::string& path) {
  const Field* field = fields_.find(path);
  if (field == nullptr) return nullptr;
  double* const* number = std::get_if<double*>(&field->target);
  return number != nullptr ? *number : nullptr;
}

std::vector<Adjustable> adjustable_values(const profiles::Profile& profile, CostGroup group) {
  profiles::Profile copy = profile;
  const profiles::FieldList fields = profiles::fields_of(copy);
  const std::string kernel = fmt::format("cost.attention.{}.", attention_kernel(profile));
  std::vector<Adjustable> values;
  for (const Field& field : fields.fields()) {
    const profiles::Belief& belief = field.belief;
    if (belief.spread <= 0 || belief.group != group) continue;
    if (group == CostGroup::kAttention && !field.path.starts_with(kernel)) continue;
    const double value = *std::get<double*>(field.target);
    // What a step adds may well be nothing in a profile; it is found from its measurement.
    if (!(value > 0) && group != CostGroup::kHost) continue;
    values.push_back({field.path, belief.spread, belief.rank, belief.relative,
                      std::max(field.accepted.min, kLeastValue),
                      std::min(most_of(field, value, profile.cluster.gpu), kMostValue)});
  }
  std::stable_sort(values.begin(), values.end(),
                   [](const Adjustable& a, const Adjustable& b) { return a.rank < b.rank; });
  return values;
}

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kSeen = 1e-3;           // a derivative below is none
constexpr double kAssumedNoise = 0.015;  // to begin with; the fit then knows better
constexpr double kBelievedFreedom = 2;   // degrees of freedom of what is believed of errors
// Wave hardness of products (GemmParams::w): the objective has a valley on each side of the middle.
constexpr double kBetweenWaves = 0.5, kSoftWaves = 0.2, kHardWaves = 0.9;
constexpr double kBetter = 0.999;  // of the sum of errors: the other valley must be better by that

using Vector = std::vector<double>;

Eigen::Map<const VectorXd> mapped(const Vector& x) {
  return {x.data(), static_cast<Index>(x.size())};
}
Eigen::Map<const MatrixXd> mapped(const Vector& columns, std::size_t rows, std::size_t count) {
  return {columns.data(), static_cast<Index>(rows), static_cast<Index>(count)};
}

/// The better of the fits from the profile's values and, for products, from hard and soft waves:
/// two valleys of one objective.
LadFit fit_from_starts(GroupProblem& problem, const Indices& free) {
  const LadProblem lad = problem.problem(free, problem.all_rows());
  const Vector start = problem.start(free);
  LadFit best = fit_lad(lad, start);
  for (std::size_t j = 0; j < free.size(); ++j) {
    if (problem.values()[free[j]].path != "cost.gemm.w") continue;
    Vector other = best.x;
    other[j] = std::log(std::exp(best.x[j]) > kBetweenWaves ? kSoftWaves : kHardWaves);
    LadFit fit = fit_lad(lad, other);
    if (mapped(fit.residuals).lpNorm<1>() < kBetter * mapped(best.residuals).lpNorm<1>())
      best = std::move(fit);
  }
  return best;
}

/// How far the free values go when the frozen ones may move too, held by belief alone: what the
/// slopes at one point do not show of formulas with corners.
VectorXd moved_by_frozen(GroupProblem& problem, const LadFit& fit, const Indices& free,
                         const Indices& frozen) {
  Indices both = free;
  both.insert(both.end(), frozen.begin(), frozen.end());
  Vector start = problem.start(both);
  std::copy(fit.x.begin(), fit.x.end(), start.begin());
  const LadFit all = fit_lad(problem.problem(both, problem.all_rows()), start);
  return mapped(all.x).head(static_cast<Index>(free.size())) - mapped(fit.x);
}

std::string why_frozen(const Adjustable& value, std::int64_t rows) {
  if (rows == 0) return "no measurement depends on it";
  return value.rank == 0 ? "the measurements leave it too wide"
                         : "the measurements cannot tell it from other values";
}

/// A group's fit on its way.
class GroupFitter {
 public:
  GroupFitter(GroupProblem& problem, const std::vector<Adjustable>& values)
      : problem_(problem),
        values_(values),
        whole_(problem.problem(problem.all_values(), problem.all_rows())),
        base_(problem.start(problem.all_values())),
        before_(whole_.residuals(base_)) {
    look_at_slopes(base_);
    for (std::size_t j = 0; j < values.size(); ++j) {
      const auto column = slopes_.col(static_cast<Index>(j)).array().abs();
      rows_seeing_.push_back((column > kSeen).count());
      seen_.push_back(rows_seeing_.back() > 0);
      if (seen_.back()) free_.push_back(j);
    }
    standardized_ = slopes_;
    for (Index i = 0; i < slopes_.rows(); ++i) {
      standardized_.row(i) /=
          std::hypot(problem.targets()[static_cast<std::size_t>(i)].noise, kAssumedNoise);
    }
    freeze_undetermined(standardized_, values, free_);
  }

  /// Until all free values are determined.
  void fit() {
    for (;;) {
      fit_ = fit_from_starts(problem_, free_);
      Vector at = base_;
      for (std::size_t j = 0; j < free_.size(); ++j) at[free_[j]] = fit_.x[j];
      look_at_slopes(at);
      const MatrixXd own = mapped(fit_.covariance, free_.size(), free_.size());
      const Indices frozen = uncertain(free_, seen_, values_);
      covariance_ = total_covariance(own, mapped(fit_.scale), slopes_, free_, frozen, values_);
      if (!frozen.empty() && !free_.empty()) {
        covariance_.diagonal() += moved_by_frozen(problem_, fit_, free_, frozen).cwiseAbs2();
      }
      const auto worst = too_wide(covariance_, own, free_, values_);
      if (!worst) return;
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(*worst));
    }
  }

  Vector errors_held_out() const { return held_out(problem_, free_, fit_, slopes_, standardized_); }
  const Vector& errors() const { return fit_.residuals; }
  const Vector& errors_before() const { return before_; }

  /// Leaves the profile fitted.
  std::vector<FittedValue> take(EditableProfile& profile) {
    problem_.apply(free_, fit_.x);
    std::vector<FittedValue> result;
    const double beyond =
        static_cast<double>(fit_.residuals.size()) - static_cast<double>(free_.size());
    const double quantile = student_975(beyond + kBelievedFreedom);
    for (std::size_t j = 0; j < values_.size(); ++j) {
      FittedValue& value = result.emplace_back();
      value.path = values_[j].path;
      value.before = problem_.base(j);
      value.rows = rows_seeing_[j];
      value.after = value.low = value.high = *profile.find(value.path);
      const auto at = std::find(free_.begin(), free_.end(), j);
      value.determined = at != free_.end();
      if (!value.determined) {
        value.why_not = why_frozen(values_[j], rows_seeing_[j]);
        continue;
      }
      const auto place = static_cast<Index>(at - free_.begin());
      const double width = quantile * std::sqrt(covariance_(place, place));
      value.low = std::max(value.after * std::exp(-width), values_[j].lower);
      value.high = std::min(value.after * std::exp(width), values_[j].upper);
    }
    return result;
  }

 private:
  void look_at_slopes(const Vector& at) {
    slopes_ = mapped(jacobian_of(whole_, at), problem_.targets().size(), values_.size());
  }

  GroupProblem& problem_;
  const std::vector<Adjustable>& values_;
  LadProblem whole_;  // of all values and rows
  Vector base_, before_;
  MatrixXd slopes_;        // rows x values: at the base, then at the fit
  MatrixXd standardized_;  // at the base
  std::vector<std::int64_t> rows_seeing_;
  std::vector<bool> seen_;
  Indices free_;
  LadFit fit_;
  MatrixXd covariance_;  // of the free values
};

}  // namespace

GroupFit fit_group(EditableProfile& profile, CostGroup group, const std::vector<Target>& targets,
                   const Sharing& sharing, const FitOptions& options) {
  GroupFit result;
  result.group = result.errors.group = group;
  const std::vector<Adjustable> adjustable = adjustable_values(profile.profile(), group);
  GroupProblem problem(profile, adjustable, targets, sharing);
  GroupFitter fitter(problem, adjustable);
  fitter.fit();
  const bool holds_out = options.held_out && !targets.empty();
  const Vector out = holds_out ? fitter.errors_held_out() : fitter.errors();
  result.values = fitter.take(profile);
  fill_errors(targets, fitter.errors_before(), fitter.errors(), out,
              options.held_out ? options.level : 0, result.errors);
  return result;
}

namespace {

constexpr int kDraws = 400;
constexpr std::size_t kFewest = 2;
constexpr double kBelievedMiss = 0.05;  // of an operation that nothing can be held against
constexpr double kLeastHalfWidth = 0.005;

profiles::ErrorSummary summary(const std::vector<double>& log_errors) {
  std::vector<double> errors;
  for (const double error : log_errors) {
    if (std::isfinite(error)) errors.push_back(std::abs(std::expm1(error)));
  }
  return summarize_errors(errors);
}

double half_width_of_total(const std::vector<Target>& targets, const std::vector<double>& held_out,
                           double level) {
  const std::size_t n = targets.size();
  if (n < kFewest) return 0;
  std::vector<double> measured, predicted;
  std::mt19937 random(20261121);
  std::normal_distribution<double> believed(0, kBelievedMiss);
  for (std::size_t i = 0; i < n; ++i) {
    const auto& row = targets[i].row;
    const double error = std::isfinite(held_out[i]) ? held_out[i] : believed(random);
    measured.push_back(row.operation.seconds * static_cast<double>(row.count));
    predicted.push_back(measured.back() * std::exp(error));
  }
  std::vector<double> errors;
  for (int draw = 0; draw < kDraws; ++draw) {
    double is = 0, was = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t drawn = random() % n;
      is += predicted[drawn];
      was += measured[drawn];
    }
    errors.push_back(std::abs(std::log(is / was)));
  }
  const auto at = errors.begin() + static_cast<std::ptrdiff_t>(std::ceil(level * kDraws)) - 1;
  std::nth_element(errors.begin(), at, errors.end());
  const double few = student_975(static_cast<double>(n) + 1) / student_975(1e6);
  return std::clamp(*at * few, kLeastHalfWidth, profiles::kWidestCalibration);
}

}  // namespace

profiles::ErrorQuantiles quantiles_of(const std::vector<double>& values) {
  profiles::ErrorQuantiles result{};
  constexpr std::array<double, 5> kShares = {0.05, 0.25, 0.5, 0.75, 0.95};
  for (std::size_t q = 0; q < kShares.size(); ++q) result[q] = quantile(values, kShares[q]);
  return result;
}

void fill_errors(const std::vector<Target>& targets, const std::vector<double>& before,
                 const std::vector<double>& in_sample, const std::vector<double>& held_out,
                 double level, profiles::CalibratedGroup& errors) {
  errors.rows = static_cast<std::int64_t>(targets.size());
  for (const Target& target : targets) errors.observations += target.row.count;
  errors.before = summary(before);
  errors.in_sample = summary(in_sample);
  if (level <= 0) return;
  errors.held_out = summary(held_out);
  std::vector<double> measured_over_predicted;
  for (const double error : held_out) {
    if (std::isfinite(error)) measured_over_predicted.push_back(-error);
  }
  errors.quantiles = quantiles_of(measured_over_predicted);
  errors.half_width = half_width_of_total(targets, held_out, level);
}

}  // namespace shardwright::sim
