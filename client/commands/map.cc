#include <cstdio>
#include <iostream>

#include "client/commands/commands.h"
#include "client/render/flatten.h"
#include "common/known_maps.h"
#include "common/names.h"

namespace statcollect::client {

int ListMaps(Session&, const MapOptions&) {
  for (const std::string& name : KnownMapNames()) std::cout << name << "\n";
  return kExitSame;
}

int ShowMap(Session& session, const MapOptions& options) {
  const auto rules = KnownMap(options.name);
  if (!rules.ok()) return session.Fail("map show " + Printable(options.name), rules.status());
  std::cout << *rules;
  return kExitSame;
}

int ProposeMap(Session& session, const MapOptions& options) {
  const std::string attempted =
      "map propose " + Printable(options.run_a) + " " + Printable(options.run_b);
  for (const std::string* run : {&options.run_a, &options.run_b}) {
    if (const Status wrong = ValidateRunName(*run); !wrong.ok())
      return session.Fail(attempted, wrong);
  }
  v1::ProposeMapRequest request;
  request.set_run_a(options.run_a);
  request.set_run_b(options.run_b);
  const auto response = session.collector().ProposeMap(request);
  if (!response.ok()) return session.Fail(attempted, response.status());
  bool complete = response->only_a().empty() && response->only_b().empty();
  for (const v1::ProposedName& one : response->records()) complete = complete && !one.ambiguous();
  if (session.options().format == Format::kTable) {
    std::cout << response->map();
    for (const std::string& note : response->notes()) std::cerr << Printable(note) << "\n";
  } else {
    session.Print(
        *response, [&] { return FlattenRecords(response->records()); }, [] { return Page(); });
  }
  return complete ? kExitSame : kExitDiverged;
}

}  // namespace statcollect::client
