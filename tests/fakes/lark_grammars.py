"""A grammar of the kind that coding agents bring along: our own, of their patch language."""

APPLY_PATCH = r"""
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?

hunk: add | delete | update
add: "*** Add File: " path LF added+ -> added_file
delete: "*** Delete File: " path LF
update: "*** Update File: " path LF move? change?

path: /(.+)/
added: "+" /(.*)/ LF
move: "*** Move to: " path LF
change: (place | line)+ ending?
place: ("@@" | "@@ " /(.+)/) LF
line: ("+" | "-" | " ") /(.*)/ LF  // kept, taken out or put in
ending: "*** End of File" LF

%import common.LF
"""
