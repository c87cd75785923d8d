"""A module as XLA prints it: lines as long as they come."""

# ruff: noqa: E501
TEXT = """HloModule jit_program, is_scheduled=true, entry_computation_layout={...}, num_partitions=4

FileNames
1 "train.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}


%product (p.0: f32[8,16], p.1: f32[16,32]) -> f32[8,32] {
  %p.1 = f32[16,32]{1,0} parameter(1)
  %p.0 = f32[8,16]{1,0} parameter(0)
  ROOT %dot.1 = f32[8,32]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (state: (s32[], f32[8,32])) -> (s32[], f32[8,32]) {
  %state = (s32[], f32[8,32]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[8,32]{1,0} get-tuple-element(%state), index=1
  %sent = f32[8,32]{1,0} all-reduce(%x), replica_groups=[2,2]<=[4], to_apply=%sum, metadata={stack_frame_id=1}
  ROOT %next = (s32[], f32[8,32]{1,0}) tuple(%i, %sent)
}

%condition (state.1: (s32[], f32[8,32])) -> pred[] {
  %state.1 = (s32[], f32[8,32]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (w: f32[4,32], x: f32[8,16]) -> f32[8,32] {
  %w = f32[4,32]{1,0:T(8,128)} parameter(0)
  %x.1 = f32[8,16]{1,0} parameter(1)
  %all = f32[16,32]{1,0} all-gather(%w), replica_groups=mesh['a'=2,'b'=2] {'a','b'}, dimensions={0}, metadata={stack_frame_id=1}
  %fused = f32[8,32]{1,0} fusion(%x.1, %all), kind=kCustom, calls=%product, metadata={op_name="jit(program)/aten::mm/dot" stack_frame_id=1}
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,32]{1,0}) tuple(%zero, %fused)
  %loop = (s32[], f32[8,32]{1,0}, /*index=2*/f32[]) while(%start), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %last = f32[8,32]{1,0} get-tuple-element(%loop), index=1
  ROOT %result = f32[8,32]{1,0} negate(%last)
}
"""
LINE = ("train.py", 7, "step")
