#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/selection.h"
#include "client/render/flatten.h"
#include "client/render/progress_bar.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

std::string Joined(const google::protobuf::RepeatedPtrField<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : ", ") + Printable(name);
  return joined;
}

Page Render(const v1::NoiseProfile& profile) {
  Page page;
  page.AddSentence(
      fmt::format("{}, measured over {} step{} (to step {}) from {}: {} of {} activations are not "
                  "the same in "
                  "every repeat.",
                  Printable(profile.run()), FormatCount(profile.steps()),
                  profile.steps() == 1 ? "" : "s", profile.last_step(), Joined(profile.repeats()),
                  FormatCount(profile.activations()), FormatCount(profile.activations_total())),
      "NOISE", Tone::kGood);
  if (profile.records().empty()) return page;
  Table table({{"kind", Align::kLeft, false, Use::kIfItVaries},
               {"activation", Align::kLeft, true},
               {"mb", Align::kRight, false, Use::kIfItVaries},
               {"at step 0", Align::kRight},
               {fmt::format("at step {}", profile.last_step()), Align::kRight}});
  for (const v1::NoiseRow& row : profile.records()) {
    const std::string kind =
        row.kind() == v1::KIND_UNSPECIFIED ? "loss" : EnumText(*v1::Kind_descriptor(), row.kind());
    const std::string path =
        row.output_path().empty() ? "" : "[" + Printable(row.output_path()) + "]";
    table.AddRow({kind, Printable(row.activation()) + path, std::to_string(row.micro_batch()),
                  FormatShort(row.first()), FormatShort(row.last())});
  }
  page.AddHeading("Noisiest (largest distance between the run and a repeat)");
  page.AddTable(std::move(table));
  page.AddSentence(
      "statctl diff --run-a " + Printable(profile.run()) +
          " now reports only differences of more than 10 times this noise; --no-noise ignores it.",
      "Next:");
  return page;
}

int Print(Session& session, const std::string& attempted, const Result<v1::NoiseProfile>& profile) {
  if (!profile.ok()) return session.Fail(attempted, profile.status());
  session.Print(
      *profile, [&] { return FlattenRecords(profile->records()); },
      [&] { return Render(*profile); });
  return kExitSame;
}

}  // namespace

int SaveNoise(Session& session, const std::string& run, const std::string& repeats) {
  const std::string attempted = "noise save " + Printable(run);
  v1::SaveNoiseRequest request;
  request.set_run(run);
  for (const std::string& repeat : SplitCommas(repeats)) {
    if (const Status named = ValidateRunName(repeat); !named.ok())
      return session.Fail(attempted, named);
    request.add_repeats(repeat);
  }
  ProgressBar bar("measuring", session.terminal().err && !session.options().quiet);
  const auto profile = session.collector().SaveNoise(
      request, [&](const v1::Progress& progress) { bar.Draw(progress.done(), progress.total()); });
  return Print(session, attempted, profile);
}

int ShowNoise(Session& session, const std::string& run) {
  v1::GetNoiseRequest request;
  request.set_run(run);
  return Print(session, "noise show " + Printable(run), session.collector().GetNoise(request));
}

int RemoveNoise(Session& session, const std::string& run) {
  v1::DeleteNoiseRequest request;
  request.set_run(run);
  const auto removed = session.collector().DeleteNoise(request);
  if (!removed.ok()) return session.Fail("noise rm " + Printable(run), removed.status());
  if (session.options().format == Format::kJson) {
    session.PrintJson(*removed);
  } else {
    session.Remark(fmt::format("removed the noise saved for run '{}'", Printable(run)));
  }
  return kExitSame;
}

}  // namespace statcollect::client
