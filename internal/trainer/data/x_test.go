package data
import ("testing";"os";"bytes";"encoding/json";"github.com/parquet-go/parquet-go";"fmt")
func TestX(t *testing.T){ b,_:=os.ReadFile("testdata/rows.parquet"); f,err:=parquet.OpenFile(bytes.NewReader(b),int64(len(b))); fmt.Println(err, f.Schema()); rows,err:=parquet.Read[any](bytes.NewReader(b),int64(len(b))); fmt.Println(err); for _,r:=range rows { j,e:=json.Marshal(r); fmt.Printf("%s %v %T\n",j,e,r); for k,v:=range r.(map[string]any){fmt.Printf("%s:%T ",k,v)} } }
