#include "cli/verbs.h"

#include "cli/verb_calibrate.h"
#include "cli/verb_compare.h"
#include "cli/verb_doctor.h"
#include "cli/verb_export.h"
#include "cli/verb_inspect.h"
#include "cli/verb_measure.h"
#include "cli/verb_predict.h"
#include "cli/verb_profile.h"
#include "cli/verb_report.h"
#include "cli/verb_run.h"
#include "cli/verb_size.h"
#include "cli/verb_tune.h"
#include "cli/verb_validate.h"

namespace shardwright::cli {

std::vector<std::unique_ptr<Verb>> make_verbs() {
  std::vector<std::unique_ptr<Verb>> verbs;
  verbs.push_back(make_predict_verb());
  verbs.push_back(make_tune_verb());
  verbs.push_back(make_size_verb());
  verbs.push_back(make_run_verb());
  verbs.push_back(make_compare_verb());
  verbs.push_back(make_measure_verb());
  verbs.push_back(make_calibrate_verb());
  verbs.push_back(make_validate_verb());
  verbs.push_back(make_profile_verb());
  verbs.push_back(make_inspect_verb());
  verbs.push_back(make_export_verb());
  verbs.push_back(make_report_verb());
  verbs.push_back(make_doctor_verb());
  return verbs;
}

}  // namespace shardwright::cli
