// Parts of questions and answers that several messages share.
#ifndef STATCOLLECT_SERVER_API_CONVERT_PARTS_H_
#define STATCOLLECT_SERVER_API_CONVERT_PARTS_H_

#include "server/query/answers/message_parts.h"
#include "server/query/answers/runs.h"

namespace statcollect::api {

using query::CheckMapSide;
using query::CheckTolerance;
using query::Copy;
using query::Invalid;
using query::KindFromWire;
using query::RunsFromWire;
using query::SelectionFromWire;
using query::ToWire;

// What rows of a diff and of a check of ranks say of their tensor, and how far it is off.
template <typename From, typename Row>
void FillTensor(const From& from, Row& to) {
  to.set_step(from.step);
  to.set_micro_batch(from.micro_batch);
  to.set_stage(static_cast<v1::Stage>(from.stage));
  to.set_kind(static_cast<v1::Kind>(from.kind));
  to.set_activation(from.activation);
  to.set_output_path(from.output_path);
  to.set_call(from.call);
  to.set_class_name(from.class_name);
  to.set_mode(from.mode);
  Copy(from.distance, [&](double value) { to.set_distance(value); });
  to.set_distance_kind(static_cast<v1::DistanceKind>(from.distance_kind));
  Copy(from.tolerance, [&](double value) { to.set_tolerance(value); });
}

// How the reports of both end.
template <typename Report, typename Message>
void FillEnd(const Report& report, Message& out) {
  out.mutable_ranks()->Add(report.ranks.begin(), report.ranks.end());
  if (report.steps) {
    out.mutable_steps()->set_first(report.steps->first);
    out.mutable_steps()->set_last(report.steps->last);
  }
  out.set_message(report.message);
  out.mutable_notes()->Add(report.notes.begin(), report.notes.end());
}

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_CONVERT_PARTS_H_
