#include "client/command_line/command_table.h"

#include "client/command_line/declarations.h"

namespace statcollect::client {

const std::vector<CommandSection>& CommandTable() {
  constexpr bool kFirst = true, kLater = false;
  static const std::vector<CommandSection> kTable = {
      {"Record trainings",
       {{"run", AddRun, kFirst},
        {"ab", AddAb, kFirst},
        {"bisect", AddBisect},
        {"twins", AddTwins}}},
      {"Compare runs",
       {{"diff", AddDiff, kFirst},
        {"report", AddReport, kFirst},
        {"open", AddOpen, kFirst},
        {"zoom", AddZoom},
        {"weights", AddWeights},
        {"config", AddConfig},
        {"summary", AddSummary},
        {"golden", AddGolden}}},
      {"Used with diff", {{"map", AddMap}, {"noise", AddNoise}}},
      {"Look at a run",
       {{"runs", AddRuns, kFirst},
        {"show",
         AddShow,
         kFirst,
         {{"memory", AddMemory, "show RUN --memory"},
          {"density", AddDensity, "show RUN --padding"},
          {"events", AddEvents, "show RUN --events"}}},
        {"tensor",
         AddTensor,
         kFirst,
         {{"series", AddSeries, "tensor RUN NAME"},
          {"top", AddTop, "tensor RUN"},
          {"exponents", AddExponents, "tensor RUN [NAME] --exponents"}}},
        {"scalars", AddScalars, kFirst},
        {"ranks", AddRanks},
        {"values", AddValues},
        {"values get", AddValuesGet, kLater, {{"capture"}}},
        {"values list", AddValuesList, kLater, {{"captures"}}},
        {"values diff", AddValuesDiff, kLater, {{"diff-values"}}}}},
      {"While it trains", {{"watch", AddWatch}, {"set-steps", AddSetSteps, kLater, {{"record"}}}}},
      {"Manage runs and the collector",
       {{"pin", AddPin, kLater, {{"keep"}}},
        {"rm", AddRemove},
        {"move", AddMove},
        {"move import", AddImport, kLater, {{"import"}}},
        {"move export", AddExport, kLater, {{"export"}}},
        {"move migrate", AddMigrate, kLater, {{"migrate"}}},
        {"status", AddStatus},
        {"admin", AddAdmin},
        {"admin checkpoint", AddCheckpoint, kLater, {{"checkpoint"}}},
        {"admin audit", AddAudit, kLater, {{"audit"}}}}},
      {"Bridges to other tools", {{"mcp", AddMcp}}},
      {"Help", {{"help", nullptr, kFirst}, {"completion"}}},
  };
  return kTable;
}

}  // namespace statcollect::client
